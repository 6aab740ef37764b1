"""A capture in lines to read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from harness.record.text import visible
from harness.repro.capture_ends import chosen_end
from harness.repro.capture_records import Capture, Died, Microbatch, Rank
from harness.repro.intake.masking import masked

_LENGTHS = 12
_VERSIONS = ("megatron_core", "cudnn_frontend", "cute_dsl", "cudnn", "torch", "cuda", "flash_mla")


def lines_of(capture: Capture, only: int | None = None) -> Iterator[str]:
    """Yield what a capture holds.

    Args:
        capture: The capture.
        only: Rank whose microbatches are listed; None lists those of the rank at fault.
    """
    end = chosen_end(capture, only)
    yield f"{capture.folder}: {len(capture.ranks)} ranks"
    for problem in capture.problems:
        yield f"  {visible(problem)}"
    if capture.num_older:
        yield f"  {capture.num_older} files of earlier processes left out"
    for rank in capture.ranks.values():
        yield f"  rank {rank.rank}: {visible(_rank(rank))}"
    shown = capture.ranks[end.rank]
    yield visible(end.how)
    yield from _software(shown)
    for microbatch in shown.microbatches.values():
        yield from (_harmless(line) for line in _microbatch(microbatch))


def _harmless(line: str) -> str:
    """Escape what is hidden; the blanks in front are ours."""
    text = line.lstrip(" ")
    return line[: len(line) - len(text)] + visible(text)


def _rank(rank: Rank) -> str:
    first, last = min(rank.microbatches), max(rank.microbatches)
    parts = [f"microbatches {first} to {last}"]
    if rank.unread_last is not None:
        parts.append(f"microbatch {rank.unread_last} without a line of its own")
    if rank.died is not None:
        parts.append(f"ended with {_died(rank.died)}")
    else:
        parts.append(rank.last_word)
    if rank.num_broken:
        parts.append(f"{rank.num_broken} lines cut or broken")
    if rank.lost:
        parts.append(f"{rank.lost} lines lost in the job")
    return ", ".join(parts)


def _died(died: Died) -> str:
    text = died.text.splitlines()[0] if died.text else ""
    where = "" if died.layer is None else f" in layer {died.layer}"
    return f"{died.type}{where}: {masked(text)[:120]}"


def _software(rank: Rank) -> Iterator[str]:
    versions: dict[str, Any] = rank.process.get("versions") or {}
    known = [f"{name} {versions[name]}" for name in _VERSIONS if versions.get(name)]
    device = rank.process.get("device") or {}
    if device.get("name"):
        known.insert(0, f"{device['name']} ({device.get('capability')})")
    yield "  " + visible(", ".join(known))


def _microbatch(found: Microbatch) -> Iterator[str]:
    facts = found.facts
    cp: dict[str, Any] = facts.get("cp") or {}
    mode = "" if facts.get("training") is not False else ", evaluation"
    yield (
        f"  microbatch {found.number}: CP {cp.get('size', 1)} rank {cp.get('rank', 0)} (configured "
        f"{facts.get('configured_cp')}), query {(facts.get('query') or {}).get('shape')}{mode}"
    )
    for name, bounds in found.lists.items():
        if name.startswith("cu_"):
            lengths = [after - before for before, after in pairwise(bounds)]
            shown = ", ".join(map(str, lengths[:_LENGTHS]))
            more = f", ... ({len(lengths)})" if len(lengths) > _LENGTHS else ""
            yield f"    {name.removeprefix('cu_')}: [{shown}{more}]"
    inside = [str(layer) for layer in found.entered if layer not in found.left]
    if inside:
        yield f"    did not come back from layer {', '.join(inside)}"
    if found.replayed:
        layers = ", ".join(map(str, sorted(found.replayed)))
        yield f"    computed again in backward: layers {layers}"
    for name in found.not_landed:
        yield f"    not landed: {name}"
    yield from _scores(found)
    for file, state in found.tensors.items():
        yield f"    tensor {file}: {state}"


def _scores(found: Microbatch) -> Iterator[str]:
    for line in found.scores:
        counts = ", ".join(
            f"{line[name]} {words}"
            for name, words in (
                ("below_fp16", "below the fp16 minimum"),
                ("nan", "NaN"),
                ("pos_inf", "+inf"),
            )
            if line.get(name)
        )
        yield (
            f"    scores of layer {line.get('layer')}: {line['rows']} x {line['keys']}, "
            f"{line['sampled']} rows looked at: {line.get('min')} to {line.get('max')}"
            f"{', ' if counts else ''}{counts}"
        )
