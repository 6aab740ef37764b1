"""Changes of a scenario that keep it whole: what hangs on the changed part follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from harness.layout import padded_length
from harness.scenario.spec import CompareSpec, MicrobatchSpec, Scenario, TrainingSpec

_WITHOUT_GROUPS = ("scorer", "kernel")


def place_of(rank: int, size: int, new_size: int) -> int:
    """Where a rank goes when its group shrinks: the last stays last, the others keep their part."""
    return new_size - 1 if rank == size - 1 else rank * new_size // size


def with_cp(scenario: Scenario, size: int) -> Scenario:
    """Return a scenario whose CP sizes all shrink as the configured one does."""
    parallel = scenario.parallel
    old = parallel.context_parallel_size
    ranks = parallel.cp_ranks
    if ranks != "all":
        ranks = tuple(dict.fromkeys(place_of(rank, old, size) for rank in ranks))
    packs = tuple(_pack_at(scenario, pack, old, size) for pack in scenario.microbatches)
    changed = replace(
        scenario,
        parallel=replace(parallel, context_parallel_size=size, cp_ranks=ranks),
        microbatches=packs,
    )
    return fitted(changed, before=scenario)


def _pack_at(scenario: Scenario, pack: MicrobatchSpec, old: int, size: int) -> MicrobatchSpec:
    effective = None if pack.cp is None else max(1, pack.cp * size // old)
    unit = effective or size
    return replace(
        pack,
        cp=effective,
        cp_group="real" if (effective or size) > 1 else pack.cp_group,
        padded=_padded_at(pack.sequences, pack.padded, unit),
        kv_padded=_padded_at(pack.kv_sequences or (), pack.kv_padded, unit),
        tail_padding=-(-pack.tail_padding * size // old // unit) * unit,
    )


def _padded_at(lengths: Sequence[int], padded: Any, cp_size: int) -> Any:
    if not isinstance(padded, tuple):
        return "auto"
    fits = all(length == padded_length(length, cp_size) for length in padded)
    return padded if fits and len(padded) == len(lengths) else "auto"


def fitted(scenario: Scenario, *, before: Scenario) -> Scenario:
    """Let planted faults, perturbed ranks and comparisons follow a change of the ranks."""
    old, new = _num_places(before), _num_places(scenario)
    if old == new:
        return scenario
    compare = scenario.compare
    size = scenario.parallel.context_parallel_size
    ranks = scenario.perturb.ranks
    if ranks != "all":
        ranks = tuple(dict.fromkeys(place_of(rank, old, new) for rank in ranks))
    return replace(
        scenario,
        inject=tuple(dict.fromkeys(_injected_at(text, old, new) for text in scenario.inject)),
        perturb=replace(scenario.perturb, ranks=ranks),
        compare=replace(
            compare,
            context_parallel_size=tuple(
                n for n in compare.context_parallel_size if n < size and size % n == 0
            ),
            effective_cp=tuple(n for n in compare.effective_cp if n < size and size % n == 0),
        ),
    )


def _num_places(scenario: Scenario) -> int:
    if scenario.level == "scorer":
        # Logical ranks are shared out; a planted fault names a process, of which one may be all.
        return 1
    return scenario.num_ranks


def _injected_at(text: str, old: int, new: int) -> str:
    kind, _, rest = text.partition("@")
    rank, _, phase = rest.partition(":")
    if not rank.isdecimal():
        return text
    return f"{kind}@{place_of(min(int(rank), old - 1), old, new)}:{phase}"


def with_packs(scenario: Scenario, kept: Sequence[int]) -> Scenario:
    """Return a scenario with some of its microbatches, and the steps of these."""
    packs = tuple(scenario.microbatches[index] for index in kept)
    schedule = scenario.schedule
    if schedule is not None:
        numbers = {old: new for new, old in enumerate(kept)}
        steps = [(step[0], int(step[1:])) for step in schedule]
        schedule = tuple(f"{kind}{numbers[i]}" for kind, i in steps if i in numbers)
    return replace(scenario, microbatches=packs, schedule=schedule)


def with_pack(
    scenario: Scenario, index: int, change: Callable[[MicrobatchSpec], MicrobatchSpec]
) -> Scenario:
    """Return a scenario with one microbatch changed."""
    packs = list(scenario.microbatches)
    packs[index] = change(packs[index])
    return replace(scenario, microbatches=tuple(packs))


def with_sequences(pack: MicrobatchSpec, kept: Sequence[int]) -> MicrobatchSpec:
    """Return a pack with some of its sequences, padding and keys included."""
    return replace(
        pack,
        sequences=_of(pack.sequences, kept),
        padded=_of(pack.padded, kept),
        kv_sequences=_of(pack.kv_sequences, kept),
        kv_padded=_of(pack.kv_padded, kept),
    )


def _of(values: Any, kept: Sequence[int]) -> Any:
    return tuple(values[i] for i in kept) if isinstance(values, tuple) else values


def with_lengths(pack: MicrobatchSpec, lengths: Sequence[int], cp_size: int) -> MicrobatchSpec:
    """Return a pack with other lengths; padding beyond what is needed stays as much as it was."""
    padded = pack.padded
    if isinstance(padded, tuple):
        more = [
            old_padded - padded_length(old, cp_size)
            for old, old_padded in zip(pack.sequences, padded, strict=True)
        ]
        padded = tuple(
            padded_length(new, cp_size) + extra for new, extra in zip(lengths, more, strict=True)
        )
    return replace(pack, sequences=tuple(lengths), padded=padded)


def at_level(scenario: Scenario, level: str) -> Scenario:
    """Return a scenario at a lower level, without what that level does not know."""
    changed = replace(scenario, level=level, schedule=None)  # type: ignore[arg-type]
    packs = tuple(
        replace(pack, forward_only=False, real_token_mask_q=False) for pack in changed.microbatches
    )
    if level not in _WITHOUT_GROUPS:
        return replace(changed, schedule=scenario.schedule, microbatches=scenario.microbatches)
    launches = tuple(n for n in scenario.compare.launches if n not in ("interrupted", "grad"))
    return replace(
        changed,
        parallel=replace(
            changed.parallel,
            dynamic_context_parallel=False,
            tensor_model_parallel_size=1,
            sequence_parallel=False,
        ),
        microbatches=tuple(replace(p, cp=None, beside=(), cp_group="real") for p in packs),
        training=TrainingSpec(),
        compare=CompareSpec(launches=launches),
    )


_MOST_PARTS = 16
"""Parts into which many things are cut; what is left of them is cut more finely."""


def subsets(count: int) -> list[tuple[int, ...]]:
    """What to keep of so many things, boldest first: one of them, parts, all but a part."""
    everything = range(count)
    ends = everything if count <= _MOST_PARTS // 2 else (0, count - 1)
    found: list[tuple[int, ...]] = [(index,) for index in ends]
    size = count // 2
    while size and count // size <= _MOST_PARTS:
        for start in range(0, count, size):
            part = everything[start : start + size]
            found.append(tuple(part))
            found.append(tuple(index for index in everything if index not in part))
        size //= 2
    return sorted({part for part in found if 0 < len(part) < count}, key=lambda p: (len(p), p))


def ladder(value: int, *, least: int = 1) -> list[int]:
    """Smaller values of a number, smallest first: powers of two, and the next round one below."""
    found, step = [least], 1
    while step < value:
        if step > least:
            found.append(step)
        step *= 2
    return [item for item in dict.fromkeys(found) if item < value]
