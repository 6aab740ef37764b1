"""One recorded microbatch as the microbatch of a scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from harness.layout import LayoutError, pack_sequences
from harness.repro.capture_records import Capture, CaptureError, Microbatch, Rank
from harness.scenario.spec import MicrobatchSpec

MAX_TOKENS = 2**28
"""Longest pack; what is longer is no pack but a broken file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedPack:
    """Lengths of one microbatch as the job had them.

    Attributes:
        number: The rank's own count.
        cp_size: Effective CP size, of the group that attention used.
        tp_size: Tensor-parallel size.
        real: Real lengths; of an unpacked batch its equal lengths.
        packed: Whether it was a pack (``thd``).
        tail_padding: Rows behind the last padded sequence, over the group.
        boundaries: How the lists were handed over.
        notes: What a reader must know about it.
    """

    number: int
    cp_size: int
    configured: int
    tp_size: int
    packed: bool
    real: tuple[int, ...]
    padded: tuple[int, ...]
    kv_real: tuple[int, ...]
    kv_padded: tuple[int, ...]
    tail_padding: int = 0
    boundaries: str = "own"
    has_mask: bool = False
    has_group: bool = True
    is_training: bool = True
    notes: tuple[str, ...] = ()


def recorded_pack(
    capture: Capture, rank: Rank, microbatch: Microbatch, *, without: str
) -> RecordedPack:
    """Read a microbatch's lengths; what did not land is taken from a rank of the same group.

    Args:
        capture: All ranks.
        rank: The rank.
        microbatch: One of its microbatches.
        without: How to do without it, for the message.

    Raises:
        CaptureError: when they landed nowhere, or cannot be lengths.
    """
    facts = microbatch.facts
    where = f"rank {rank.rank}, microbatch {microbatch.number}"
    group = _mapping(facts.get("cp"))
    cp_size = _size(group.get("size", 1), f"{where}: cp size")
    configured = _size(facts.get("configured_cp") or cp_size, f"{where}: configured cp size")
    tp_size = _size(_mapping(facts.get("tp")).get("size", 1), f"{where}: tp size")
    common: dict[str, Any] = {
        "number": microbatch.number,
        "cp_size": cp_size,
        "configured": configured,
        "tp_size": tp_size,
        "has_group": facts.get("cp") is not None,
        "is_training": facts.get("training") is not False,
    }
    rows = _local_rows(rank, facts, where, tp_size)
    packed = _mapping(facts.get("packed"))
    if packed.get("qkv_format") != "thd":
        batch = _shape(facts, "query", where)[1]
        lengths = (rows * cp_size,) * _size(batch, f"{where}: batch")
        return RecordedPack(
            packed=False, real=lengths, padded=lengths, kv_real=lengths, kv_padded=lengths, **common
        )
    lists, notes = _lists(capture, rank, microbatch, where, without)
    real = _lengths(lists, "cu_seqlens_q", where)
    kv_real = _lengths(lists, "cu_seqlens_kv", where) or real
    real = real or kv_real
    padded = _lengths(lists, "cu_seqlens_q_padded", where) or real
    kv_padded = _lengths(lists, "cu_seqlens_kv_padded", where) or kv_real
    if not real:
        raise CaptureError(f"{where}: expected boundaries of sequences, found none")
    tail = rows * cp_size - sum(padded)
    if tail < 0:
        notes.append(
            f"microbatch {microbatch.number}: {rows} local rows x CP {cp_size} are fewer than the "
            f"padded total {sum(padded)}; the scenario has the padded total"
        )
    return RecordedPack(
        packed=True,
        real=real,
        padded=padded,
        kv_real=kv_real,
        kv_padded=kv_padded,
        tail_padding=max(0, tail),
        boundaries=_boundaries(facts, lists),
        has_mask="real_token_mask_q" in (packed.get("others") or ()),
        notes=tuple(notes),
        **common,
    )


def microbatch_spec(pack: RecordedPack, *, cp_size: int, configured: int) -> MicrobatchSpec:
    """Return a pack as a scenario says it, at its own CP size or a smaller one.

    Args:
        pack: The recorded pack.
        cp_size: Effective CP size in the scenario.
        configured: Configured CP size in the scenario.
    """
    effective = None if cp_size == configured else cp_size
    if not pack.packed:
        return MicrobatchSpec(
            sequences=pack.real,
            qkv_format="sbhd",
            cp=effective,
            forward_only=not pack.is_training,
        )
    other_keys = (pack.kv_real, pack.kv_padded) != (pack.real, pack.padded)
    return MicrobatchSpec(
        sequences=pack.real,
        padded=_padding(pack.real, pack.padded, cp_size),
        kv_sequences=pack.kv_real if other_keys else None,
        kv_padded=_padding(pack.kv_real, pack.kv_padded, cp_size) if other_keys else "auto",
        tail_padding=pack.tail_padding,
        cp=effective,
        cp_group="real" if pack.has_group or cp_size > 1 or effective is None else "none",
        real_token_mask_q=pack.has_mask,
        boundaries=pack.boundaries,  # type: ignore[arg-type]
        forward_only=not pack.is_training,
    )


def _padding(real: tuple[int, ...], padded: tuple[int, ...], cp_size: int) -> Any:
    """``auto`` where that gives the same padded lengths."""
    try:
        auto = pack_sequences(real, cp_size=cp_size).q_padded
    except LayoutError:
        return padded
    return "auto" if auto == padded else padded


def _local_rows(rank: Rank, facts: Mapping[str, Any], where: str, tp_size: int) -> int:
    """Rows of the rank over its tensor-parallel group."""
    rows = _shape(facts, "query", where)[0]
    config = rank.configs.get(_plain_int(facts.get("config")), {})
    hidden = _mapping(facts.get("x")).get("shape") or [rows]
    is_share = config.get("sequence_parallel") is True and tp_size > 1 and hidden[0] == rows
    return rows * tp_size if is_share else rows


def _lists(
    capture: Capture, rank: Rank, microbatch: Microbatch, where: str, without: str
) -> tuple[dict[str, list[int]], list[str]]:
    lists, notes = dict(microbatch.lists), []
    for name, why in microbatch.missing.items():
        if name.startswith("max_"):
            continue
        found = _of_peers(capture, rank, microbatch, name)
        if found is None:
            raise CaptureError(
                f"{where}: expected {name}, found {why} on every rank of its group; {without}"
            )
        lists[name] = found[1]
        notes.append(
            f"microbatch {microbatch.number}: {name} {why} on rank {rank.rank}, taken from rank "
            f"{found[0]} of the same group"
        )
    return lists, notes


def _of_peers(
    capture: Capture, rank: Rank, microbatch: Microbatch, name: str
) -> tuple[int, list[int]] | None:
    ranks = _mapping(microbatch.facts.get("cp")).get("ranks")
    for other in ranks if isinstance(ranks, list) else []:
        peer = capture.ranks.get(other) if isinstance(other, int) else None
        found = None if peer is None else peer.microbatches.get(microbatch.number)
        if peer is not None and found is not None and peer is not rank and name in found.lists:
            return other, found.lists[name]
    return None


def _lengths(lists: Mapping[str, Sequence[int]], name: str, where: str) -> tuple[int, ...]:
    bounds = lists.get(name)
    if bounds is None:
        return ()
    lengths = tuple(after - before for before, after in pairwise(bounds))
    if not lengths or bounds[0] != 0 or min(lengths) < 0 or bounds[-1] > MAX_TOKENS:
        raise CaptureError(
            f"{where}: expected {name} to rise from 0 to at most {MAX_TOKENS}, found "
            f"{list(bounds[:6])!r}{'...' if len(bounds) > 6 else ''}"
        )
    return lengths


def _boundaries(facts: Mapping[str, Any], lists: Mapping[str, Any]) -> str:
    """Name the aliases of the lists, as far as a scenario has a name for them."""
    same = facts["same"]
    if len({"cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded"} & set(same)) == 3:
        return "one"
    keys = same.get("cu_seqlens_kv"), same.get("cu_seqlens_kv_padded")
    if keys == ("cu_seqlens_q", "cu_seqlens_q_padded"):
        return "shared"
    if "cu_seqlens_q_padded" not in lists and "cu_seqlens_kv_padded" not in lists:
        return "real_only"
    if "cu_seqlens_kv" not in lists and "cu_seqlens_kv_padded" not in lists:
        return "query_only"
    return "own"


def _shape(facts: Mapping[str, Any], name: str, where: str) -> list[int]:
    shape = _mapping(facts.get(name)).get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) < 2
        or not all(isinstance(size, int) and 0 <= size <= MAX_TOKENS for size in shape)
    ):
        raise CaptureError(f"{where}: expected the shape of {name}, found {shape!r:.60}")
    return shape


def _size(value: Any, what: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 2**20:
        return value
    raise CaptureError(f"{what}: expected a size from 1 on, found {value!r:.40}")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _plain_int(value: Any) -> int:
    return value if isinstance(value, int) else -1
