"""Random layout histories within the limits of a scenario, as hypothesis draws them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from harness.layout import padded_length
from harness.record.verdict import Verdict
from harness.scenario.problems import Severity
from harness.scenario.rules import check
from harness.scenario.spec import MicrobatchSpec, Scenario

_LEAST_MICROBATCHES = 3
_LEAST_SEQUENCES = 6
_WITH_GROUPS = ("attention", "model")

Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges:
    """What ``search:`` says of a scenario, with everything that it leaves out derived.

    Attributes:
        cp: Effective CP sizes; only the configured one without Dynamic CP.
    """

    microbatches: int
    sequences: int
    length: int
    tokens: int
    cp: tuple[int, ...]

    @classmethod
    def of(cls, scenario: Scenario) -> Ranges:
        """Derive the ranges of a scenario."""
        asked, packs = scenario.search, scenario.microbatches
        own = [pack.sequences for pack in packs]
        longest = max([1, *(max(sequences) for sequences in own)])
        largest = max([1, *(sum(sequences) for sequences in own)])
        tokens = asked.tokens or max(largest, asked.length or 1)
        return cls(
            microbatches=asked.microbatches or max(_LEAST_MICROBATCHES, len(packs)),
            sequences=asked.sequences or max(_LEAST_SEQUENCES, *(len(s) for s in own)),
            length=min(tokens, asked.length or (tokens if asked.tokens else longest)),
            tokens=tokens,
            cp=_sizes(scenario),
        )


def _sizes(scenario: Scenario) -> tuple[int, ...]:
    configured = scenario.parallel.context_parallel_size
    if not scenario.parallel.dynamic_context_parallel:
        return (configured,)
    if scenario.search.cp is not None:
        return scenario.search.cp
    largest = max([configured, *(pack.cp or 1 for pack in scenario.microbatches)])
    return tuple(size for size in range(1, largest + 1) if largest % size == 0)


def ranks_needed(scenario: Scenario) -> int:
    """Return the ranks of the largest history; at level scorer as many as there is work for."""
    if scenario.level == "scorer":
        return min(len(scenario.logical_cp_ranks), len(os.sched_getaffinity(0)))
    sizes = (scenario.parallel.context_parallel_size, *Ranges.of(scenario).cp)
    return max(sizes) * scenario.parallel.tensor_model_parallel_size


def sound(scenario: Scenario) -> bool:
    """Tell whether a scenario breaks no rule of the file checks.

    One whose planted fault nothing expects yet is sound: ``expecting`` says what it shows, once
    that is known.
    """
    unexpected = scenario.inject and not scenario.known and scenario.expect.verdict is Verdict.PASS
    if unexpected:
        scenario = expecting(scenario, Verdict.CRASH)
    return all(finding.severity is not Severity.ERROR for finding in check(scenario))


def expecting(scenario: Scenario, verdict: Verdict) -> Scenario:
    """Return a scenario with a planted fault as one that expects what the fault shows.

    A file that plants a fault and expects nothing of it is refused.
    """
    if not scenario.inject or scenario.known or scenario.expect.verdict is not Verdict.PASS:
        return scenario
    return replace(scenario, expect=replace(scenario.expect, verdict=verdict))


def searched(scenario: Scenario) -> Scenario:
    """Return a scenario without expectations that hold for its own packs only.

    The plan that is right for a pack is judged by the harness's own layout.
    """
    expect = replace(scenario.expect, plan=None, diagnostics=None, kernel_calls={}, text_has=())
    return replace(scenario, expect=expect, schedule=None, repeat=1)


@st.composite
def histories(draw: Draw, bases: Sequence[Scenario]) -> Scenario:
    """Draw a history: microbatches, their packs and CP sizes, and the order of their steps.

    It may break a rule of the file checks; ``sound`` tells.
    """
    base = bases[0] if len(bases) == 1 else draw(st.sampled_from(list(bases)))
    ranges = Ranges.of(base)
    count = draw(st.integers(1, ranges.microbatches))
    sizes = [draw(st.sampled_from(ranges.cp)) for _ in range(count)]
    configured = base.parallel.context_parallel_size
    ranks = max([configured, *sizes])
    packs = tuple(_microbatch(draw, base, ranges, size, ranks // size) for size in sizes)
    schedule = None
    trains = base.training.backward and base.level in _WITH_GROUPS
    if base.search.schedule and trains and count > 1 and draw(st.booleans()):
        schedule = _schedule(draw, packs)
    return replace(base, microbatches=packs, schedule=schedule)


def _microbatch(
    draw: Draw, base: Scenario, ranges: Ranges, cp_size: int, parts: int
) -> MicrobatchSpec:
    given = base.microbatches
    like = given[0] if len(given) == 1 else draw(st.sampled_from(list(given)))
    dynamic = base.parallel.dynamic_context_parallel
    made = replace(
        like,
        padded="auto",
        kv_padded="auto",
        tail_padding=0,
        cp=cp_size if dynamic else None,
        cp_group="real" if cp_size > 1 else like.cp_group,
        beside=(),
    )
    if like.qkv_format == "sbhd":
        return replace(made, sequences=_batch(draw, ranges, cp_size))
    lengths = _lengths(draw, base, ranges, cp_size)
    made = replace(made, sequences=lengths)
    if like.kv_sequences is not None:
        keys = _lengths(draw, base, ranges, cp_size, count=len(lengths))
        made = replace(made, kv_sequences=keys)
    if like.beside and parts > 1 and base.level in _WITH_GROUPS:
        others = tuple(_lengths(draw, base, ranges, cp_size) for _ in range(parts - 1))
        return replace(made, beside=others)
    if base.search.padded and like.kv_sequences is None and draw(st.booleans()):
        unit = 2 * cp_size if cp_size > 1 else 1
        more = [unit * draw(st.integers(0, 2)) for _ in lengths]
        padded = [padded_length(n, cp_size) + m for n, m in zip(lengths, more, strict=True)]
        made = replace(made, padded=tuple(padded))
    if base.search.tail_padding and draw(st.booleans()):
        made = replace(made, tail_padding=2 * cp_size * draw(st.integers(0, 3)))
    return made


def _batch(draw: Draw, ranges: Ranges, cp_size: int) -> tuple[int, ...]:
    unit = 2 * cp_size if cp_size > 1 else 1
    length = unit * draw(st.integers(1, max(1, ranges.length // unit)))
    streams = draw(st.integers(1, max(1, min(ranges.sequences, ranges.tokens // length))))
    return (length,) * streams


def _lengths(
    draw: Draw, base: Scenario, ranges: Ranges, cp_size: int, count: int | None = None
) -> tuple[int, ...]:
    """Draw lengths that fit the tokens together, as many as asked for."""
    least = 0 if base.search.zero_lengths else 1
    number = draw(st.integers(1, ranges.sequences)) if count is None else count
    left, lengths = ranges.tokens, []
    for place in range(number):
        due = 0 if count is None else least * (number - place - 1)
        most = min(left - due, ranges.length)
        if most < least:
            break
        lengths.append(draw(_length(least, most, cp_size)))
        left -= lengths[-1]
    if not any(lengths) and not base.search.all_empty:
        place = draw(st.integers(0, len(lengths) - 1))
        lengths[place] = draw(_length(1, ranges.length, cp_size))
    return tuple(lengths)


def _length(least: int, most: int, cp_size: int) -> st.SearchStrategy[int]:
    """Any length, and half of the time one at an edge: of nothing, of a chunk, of the range."""
    unit = 2 * cp_size
    places = {0, 1, 2, cp_size, unit - 1, unit, unit + 1, most // unit * unit, most - 1, most}
    edges = sorted(length for length in places if least <= length <= most)
    return st.one_of(st.sampled_from(edges), st.integers(least, most))


def _schedule(draw: Draw, packs: Sequence[MicrobatchSpec]) -> tuple[str, ...]:
    """Draw an order in which every forward stands before its own backward."""
    steps: list[str] = []
    coming, open_ = list(range(len(packs))), list[int]()
    while coming or open_:
        if coming and (not open_ or draw(st.booleans())):
            index = coming.pop(0)
            steps.append(f"F{index}")
            open_ += [] if packs[index].forward_only else [index]
        else:
            index = open_[0] if len(open_) == 1 else draw(st.sampled_from(open_))
            open_.remove(index)
            steps.append(f"B{index}")
    return tuple(steps)
