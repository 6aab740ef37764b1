"""What no single file can show, and what to do instead: each refusal is one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from harness.record.verdict import Verdict
from harness.scenario.spec import MicrobatchSpec, Scenario, TrainingSpec


class ExportRefusedError(ValueError):
    """The scenario or result cannot become a script; the text says what to do."""


JUDGED = (
    Verdict.MEMORY_FAULT,
    Verdict.CRASH,
    Verdict.HANG,
    Verdict.COMPILE_FAILED,
    Verdict.REFUSED,
    Verdict.WRONG_PATH,
    Verdict.OUT_OF_BOUNDS,
    Verdict.WRONG_SELECTION,
    Verdict.WRONG_VALUE,
    Verdict.WRONG_GRADIENT,
    Verdict.PASS,
)
"""Verdicts that a script can come to, in order of precedence."""


def check_verdict(verdict: Verdict) -> None:
    """Refuse results whose verdict a script does not compute.

    Raises:
        ExportRefusedError: with the verdicts that it does.
    """
    if verdict not in JUDGED:
        raise ExportRefusedError(
            f"a script cannot show {verdict}: it judges one case in fresh processes, and comes to "
            f"one of {', '.join(JUDGED)}; export the bundle's scenario and evidence instead, or "
            "another scenario of the run"
        )


def check_scenario(scenario: Scenario) -> None:
    """Refuse scenarios that need more than a script holds.

    Raises:
        ExportRefusedError: naming the first key in the way and what to do.
    """
    for key, remedy in _in_the_way(scenario):
        raise ExportRefusedError(f"{scenario.id}: {key} has no place in a script; {remedy}")


_MODELLED = frozenset(
    (
        *("d311", "d311_residue", "d446", "d406", "short_rows", "d550", "foreign_ids", "d384"),
        *("unzeroed_dk", "d317", "d1549", "slot_arithmetic", "invalid_slots", "tail_slots"),
        *("single_row", "d785", "d877", "d433", "d298"),
    )
)
"""Defects that scripts have lines for, or that their calls cannot reach."""
_SCENARIO = frozenset(
    (
        *("id", "summary", "source", "tags", "model", "level", "kernels", "overlays", "parallel"),
        *("microbatches", "values", "training", "kernel_call", "reference", "expect", "known"),
        *("published", "limits", "repeat"),
    )
)
_PARALLEL = frozenset(("context_parallel_size", "cp_comm_type", "cp_ranks"))
_KERNELS = frozenset(("dsa_kernel_backend", "source", "modelled", "score_chunk_bytes"))
_MICROBATCH = frozenset(
    (
        *("sequences", "padded", "kv_sequences", "kv_padded", "tail_padding", "key_positions"),
        *("qkv_format", "real_token_mask_q"),
    )
)
"""Keys that scripts act on, or that say nothing about what is run; of others they know nothing."""

_MINIMISE = "run dsa-harness minimise first, or write a smaller scenario without it"


def _in_the_way(scenario: Scenario) -> Iterator[tuple[str, str]]:
    """(key, what to do) of everything that a script has no lines for."""
    if scenario.level == "model":
        yield "level: model", "minimise first, or use level: attention (one layer) or scorer"
    if scenario.kernels.dsa_kernel_backend == "tilelang":
        yield "dsa_kernel_backend: tilelang", "use cudnn or none"
    asked = scenario.kernels.modelled.defects
    if isinstance(asked, tuple) and (unknown := sorted(set(asked) - _MODELLED)):
        yield f"kernels.modelled.defects: {unknown}", "name only defects of released kernels"
    if other := [name for name in scenario.overlays if name != "causal_offsets"]:
        yield f"overlays: {other}", "export it without, or with causal_offsets alone"
    if scenario.training != TrainingSpec():
        yield "training", "the script judges the forward's selection; " + _MINIMISE
    for owner, value, known in _sections(scenario):
        for key in _set_keys(value, known):
            yield f"{owner}{key}", _MINIMISE
    if scenario.level == "attention" and not all(map(_plain_pack, scenario.microbatches)):
        yield "qkv_format: sbhd or key_positions: explicit at level attention", "use level: scorer"
    if scenario.model.dsa_indexer_rotate_activation:
        yield "dsa_indexer_rotate_activation", "set it to false: it needs a further package"


def _sections(scenario: Scenario) -> Iterator[tuple[str, Any, frozenset[str]]]:
    """(prefix, section, keys that scripts know) of sections that may hold others."""
    yield "", scenario, _SCENARIO
    yield "parallel.", scenario.parallel, _PARALLEL
    yield "kernels.", scenario.kernels, _KERNELS
    for index, microbatch in enumerate(scenario.microbatches):
        yield f"microbatches[{index}].", microbatch, _MICROBATCH


def _set_keys(value: Any, known: frozenset[str]) -> Iterator[str]:
    """Fields that scripts do not know and that are not left at their defaults."""
    for item in fields(value):
        if item.name in known:
            continue
        default = item.default
        if item.default_factory is not MISSING:
            default = item.default_factory()
        if getattr(value, item.name) != default:
            yield item.name


def _plain_pack(microbatch: MicrobatchSpec) -> bool:
    return microbatch.qkv_format == "thd" and microbatch.key_positions == "derived"
