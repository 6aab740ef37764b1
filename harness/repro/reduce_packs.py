"""Smaller scenarios by ranks and by packs; boldest first, nothing is run here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

from harness.layout import padded_length
from harness.repro.reshape import (
    at_level,
    fitted,
    ladder,
    subsets,
    with_cp,
    with_lengths,
    with_pack,
    with_packs,
    with_sequences,
)
from harness.scenario.spec import MicrobatchSpec, Scenario

LEVELS = ("scorer", "attention", "model")
"""From low to high."""

Candidates = Iterator[tuple[str, Scenario]]


def levels_reduced(scenario: Scenario) -> Candidates:
    """Yield lower levels, the lowest first."""
    if scenario.level in LEVELS:
        for level in LEVELS[: LEVELS.index(scenario.level)]:
            yield f"level {level}", at_level(scenario, level)


def cp_reduced(scenario: Scenario) -> Candidates:
    """Yield smaller CP sizes; effective sizes, ranks and padding follow."""
    size = scenario.parallel.context_parallel_size
    for smaller in ladder(size):
        yield f"context_parallel_size {smaller}", with_cp(scenario, smaller)


def tensor_parallel_reduced(scenario: Scenario) -> Candidates:
    """Yield smaller tensor-parallel sizes, and no sequence parallelism."""
    parallel = scenario.parallel
    for smaller in ladder(parallel.tensor_model_parallel_size):
        changed = replace(
            parallel,
            tensor_model_parallel_size=smaller,
            sequence_parallel=parallel.sequence_parallel and smaller > 1,
        )
        candidate = fitted(replace(scenario, parallel=changed), before=scenario)
        yield f"tensor_model_parallel_size {smaller}", candidate
    if parallel.sequence_parallel:
        changed = replace(parallel, sequence_parallel=False)
        yield "without sequence_parallel", replace(scenario, parallel=changed)


def logical_ranks_reduced(scenario: Scenario) -> Candidates:
    """Yield fewer of the logical ranks that level ``scorer`` runs."""
    if scenario.level != "scorer":
        return
    ranks = scenario.logical_cp_ranks
    if len(ranks) == scenario.parallel.context_parallel_size:
        ranks = ranks[::-1]
    for kept in subsets(len(ranks)):
        some = tuple(sorted(ranks[index] for index in kept))
        parallel = replace(scenario.parallel, cp_ranks=some)
        yield f"cp_ranks {list(some)}", replace(scenario, parallel=parallel)


def microbatches_reduced(scenario: Scenario) -> Candidates:
    """Yield fewer microbatches; the steps of the others go with them."""
    for kept in subsets(len(scenario.microbatches)):
        names = ", ".join(map(str, kept))
        yield f"microbatches {names} alone", with_packs(scenario, kept)


def steps_reduced(scenario: Scenario) -> Candidates:
    """Yield the default order of steps, and training in place of evaluation."""
    if scenario.schedule is not None:
        yield "default schedule", replace(scenario, schedule=None)
    for index, pack in enumerate(scenario.microbatches):
        if pack.forward_only:
            schedule = scenario.schedule
            if schedule is not None:
                schedule = (*schedule, f"B{index}")
            changed = with_pack(scenario, index, lambda p: replace(p, forward_only=False))
            yield f"microbatch {index} trained", replace(changed, schedule=schedule)


def _each_pack(
    scenario: Scenario, change: Callable[[MicrobatchSpec], MicrobatchSpec], what: str
) -> Candidates:
    """All packs changed at once, then each alone."""
    changed = tuple(change(pack) for pack in scenario.microbatches)
    if changed != scenario.microbatches:
        yield what, replace(scenario, microbatches=changed)
    for index, pack in enumerate(changed):
        if len(changed) > 1 and pack != scenario.microbatches[index]:
            yield f"{what} in microbatch {index}", with_pack(scenario, index, change)


def dynamic_reduced(scenario: Scenario) -> Candidates:
    """Yield one size of group for all microbatches."""
    parallel = scenario.parallel
    yield from _each_pack(scenario, lambda p: replace(p, beside=()), "the same packs side by side")
    if parallel.dynamic_context_parallel:
        packs = tuple(
            replace(p, cp=None, beside=(), cp_group="real") for p in scenario.microbatches
        )
        changed = replace(
            scenario,
            parallel=replace(parallel, dynamic_context_parallel=False),
            microbatches=packs,
        )
        yield "without Dynamic CP", fitted(changed, before=scenario)


def sequences_reduced(scenario: Scenario) -> Candidates:
    """Yield fewer sequences of each pack."""
    for index, pack in enumerate(scenario.microbatches):
        for kept in subsets(len(pack.sequences)):
            lengths = [pack.sequences[place] for place in kept]
            text = f"microbatch {index} with {_listed(lengths)}"
            change = _keeping(kept)
            yield text, with_pack(scenario, index, change)


def _keeping(kept: tuple[int, ...]) -> Callable[[MicrobatchSpec], MicrobatchSpec]:
    return lambda pack: with_sequences(pack, kept)


def _listed(lengths: list[int]) -> str:
    shown = ", ".join(map(str, lengths[:4]))
    return f"[{shown}{', ...' if len(lengths) > 4 else ''}]"


def cp_of(scenario: Scenario, pack: MicrobatchSpec) -> int:
    """Effective CP size of a microbatch."""
    return pack.cp or scenario.parallel.context_parallel_size


def lengths_reduced(scenario: Scenario) -> Candidates:
    """Yield shorter sequences, all together and one by one."""
    longest = max(max(pack.sequences) for pack in scenario.microbatches)
    for most in ladder(longest):
        packs = tuple(
            with_lengths(p, [min(n, most) for n in p.sequences], cp_of(scenario, p))
            for p in scenario.microbatches
        )
        yield f"sequences of {most} at most", replace(scenario, microbatches=packs)
    for index, pack in enumerate(scenario.microbatches):
        if pack.qkv_format == "sbhd":
            continue
        for place, length in enumerate(pack.sequences):
            for shorter in _shorter(length, 2 * cp_of(scenario, pack)):
                text = f"microbatch {index}, sequence {place} of {shorter}"
                yield text, with_pack(scenario, index, _resized(scenario, pack, place, shorter))


def _shorter(length: int, unit: int) -> list[int]:
    round_below = [length // unit * unit] if length % unit and length > unit else []
    half_way = [(length * 3) // 4] if length > 4 else []
    less = [length - 1] if length > 1 else []
    return sorted({*ladder(length), *round_below, *half_way, *less})


def rounder(scenario: Scenario) -> Candidates:
    """Lengths that fill their padding, so that no row of a case is padding; longer, but no larger.

    No reduction: it is tried once, when nothing smaller is left.
    """

    def filled(pack: MicrobatchSpec) -> MicrobatchSpec:
        cp_size = cp_of(scenario, pack)
        lengths = [padded_length(n, cp_size) if n else 0 for n in pack.sequences]
        return with_lengths(replace(pack, padded="auto"), lengths, cp_size)

    packs = tuple(p if p.qkv_format == "sbhd" else filled(p) for p in scenario.microbatches)
    if packs != scenario.microbatches:
        yield "lengths that fill their padding", replace(scenario, microbatches=packs)


def _resized(
    scenario: Scenario, pack: MicrobatchSpec, place: int, length: int
) -> Callable[[MicrobatchSpec], MicrobatchSpec]:
    lengths = list(pack.sequences)
    lengths[place] = length
    return lambda found: with_lengths(found, lengths, cp_of(scenario, found))


def padding_reduced(scenario: Scenario) -> Candidates:
    """Yield less padding."""

    def plain(pack: MicrobatchSpec) -> MicrobatchSpec:
        return replace(pack, padded="auto", kv_padded="auto", tail_padding=0)

    yield from _each_pack(scenario, plain, "no padding beyond what is needed")
    yield from _each_pack(scenario, lambda p: replace(p, tail_padding=0), "no tail padding")
    for index, pack in enumerate(scenario.microbatches):
        unit = cp_of(scenario, pack)
        for rows in ladder(pack.tail_padding // unit):
            change = _tailed(rows * unit)
            yield f"microbatch {index}, tail of {rows * unit}", with_pack(scenario, index, change)


def _tailed(rows: int) -> Callable[[MicrobatchSpec], MicrobatchSpec]:
    return lambda pack: replace(pack, tail_padding=rows)


def pack_options_reduced(scenario: Scenario) -> Candidates:
    """Yield packs without what is odd about how they are handed over."""

    def like_queries(pack: MicrobatchSpec) -> MicrobatchSpec:
        return replace(pack, kv_sequences=None, kv_padded="auto")

    def plain(pack: MicrobatchSpec) -> MicrobatchSpec:
        kept = {"sequences", "padded", "kv_sequences", "kv_padded", "tail_padding", "cp"}
        kept |= {"beside", "cp_group", "forward_only", "qkv_format"}
        defaults = MicrobatchSpec(sequences=pack.sequences)
        changes = {
            item.name: getattr(defaults, item.name)
            for item in fields(MicrobatchSpec)
            if item.name not in kept
        }
        return replace(pack, **changes)

    yield from _each_pack(scenario, like_queries, "keys as the queries")
    yield from _each_pack(scenario, plain, "plain boundaries and masks")
