"""One result reduced to the values that two runs of it are compared by."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from harness.record.result import Attempt, PhaseTiming, ScenarioResult
from reports.overlap import SHOWN_STAGE, rank_overlaps
from reports.proof import kernels_text
from reports.text import ratio


class Topic(enum.StrEnum):
    """What a value is about; declared in the order in which readers need it."""

    VERDICT = "verdict"
    FAULT = "fault"
    PATH = "path"
    PLAN = "plan"
    KERNELS = "kernels"
    OVERLAP = "overlap"
    VALUES = "values"
    MEMO = "memo"
    WAITS = "waits"
    CALLS = "calls"
    WARNINGS = "warnings"
    MEMORY = "memory"
    TIMINGS = "timings"


@dataclass(frozen=True, kw_only=True, slots=True)
class Digest:
    """A result's values.

    Attributes:
        exact: (topic, item) to a value; two of them differ or do not.
        measured: (topic, item) to a number with its unit; two of them always differ a little.
    """

    exact: dict[tuple[Topic, str], str]
    measured: dict[tuple[Topic, str], Measure]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """A measured number.

    Attributes:
        unit: ``s`` or ``MiB``.
        ratio: Smallest ratio of two values (the larger over the smaller) worth showing.
        least: Smallest absolute difference worth showing, in ``unit``.
    """

    value: float
    unit: str
    ratio: float
    least: float

    def differs(self, other: Measure) -> bool:
        """Tell whether the difference to ``other`` is worth showing."""
        low, high = sorted((self.value, other.value))
        return high - low >= self.least and (low <= 0.0 or high / low >= self.ratio)

    @property
    def text(self) -> str:
        """Such as ``1.25 s``."""
        return f"{self.value:.3g} {self.unit}"


TIME_RATIO, TIME_LEAST_S = 1.5, 0.25
"""A scenario's phases take fractions of a second on CPU ranks and vary by a third under load."""
MEMORY_RATIO, MEMORY_LEAST_MIB = 1.2, 64.0
"""Allocators round up, and a rank's imports alone differ by tens of MiB."""


def digest(result: ScenarioResult) -> Digest:
    """Return the values of a result's deciding attempt."""
    attempt = result.last
    exact: dict[tuple[Topic, str], str] = {
        (Topic.VERDICT, "verdict"): str(attempt.verdict),
        (Topic.VERDICT, "outcome"): str(result.outcome),
        (Topic.VERDICT, "secondary"): ", ".join(map(str, attempt.secondary)) or "none",
        (Topic.KERNELS, "origin"): kernels_text(attempt.proof),
    }
    for part in (_fault, _paths, _overlaps, _values, _memo, _waits, _calls, _warnings):
        exact.update(part(attempt))
    return Digest(exact=exact, measured=_measured(attempt))


Exact = dict[tuple[Topic, str], str]


def _fault(attempt: Attempt) -> Exact:
    if attempt.fault is None:
        return {}
    fault = attempt.fault
    return {
        (Topic.FAULT, "first"): f"{fault.verdict} on rank {fault.global_rank} in {fault.phase}",
        (Topic.FAULT, "cause"): fault.cause,
    }


def _paths(attempt: Attempt) -> Exact:
    scorers = {f"{p.scorer} ({'fused' if p.fused else 'not fused'})" for p in attempt.paths}
    plans: dict[int, set[str]] = {}
    reasons: dict[int, set[str]] = {}
    for path in attempt.paths:
        plans.setdefault(path.microbatch, set()).add(path.plan)
        reasons.setdefault(path.microbatch, set()).add(f"{path.reason} ({path.plan_source})")
    found: Exact = {(Topic.PATH, "scorer"): _joined(scorers)} if scorers else {}
    for microbatch in plans:
        found[Topic.PLAN, f"microbatch {microbatch}"] = _joined(plans[microbatch])
        found[Topic.PLAN, f"reason, microbatch {microbatch}"] = _joined(reasons[microbatch])
    return found


def _overlaps(attempt: Attempt) -> Exact:
    found: Exact = {}
    for rank in rank_overlaps(attempt.selections, SHOWN_STAGE):
        text = f"{ratio(rank.overlap)}, strict {ratio(rank.strict)}"
        if rank.total.num_out_of_bounds:
            text += f", {rank.total.num_out_of_bounds} out of bounds"
        found[Topic.OVERLAP, f"cp_rank {rank.cp_rank}"] = text
    return found


def _values(attempt: Attempt) -> Exact:
    """Which values are beyond their tolerance: their differences move with every release."""
    found: dict[str, list[int]] = {}
    for value in attempt.values:
        ranks = found.setdefault(value.name, [])
        if not value.within:
            ranks.append(value.global_rank)
    texts = {name: _beyond(ranks) for name, ranks in found.items()}
    tables = {f"table {item.table}" for item in attempt.layouts}
    wrong = {f"table {item.table}" for item in attempt.layouts if not item.equal}
    texts |= {name: "differs" if name in wrong else "equal" for name in sorted(tables)}
    return {(Topic.VALUES, name): text for name, text in texts.items()}


def _beyond(ranks: list[int]) -> str:
    if not ranks:
        return "within tolerance"
    return "beyond tolerance on ranks " + ", ".join(str(rank) for rank in sorted(set(ranks)))


def _memo(attempt: Attempt) -> Exact:
    counts: dict[str, set[str]] = {}
    for item in getattr(attempt, "memos", ()):
        name = f"microbatch {item.microbatch}"
        counts.setdefault(name, set()).add(f"{item.builds} built, {item.reuses} reused")
    return {(Topic.MEMO, name): _joined(texts) for name, texts in counts.items()}


def _waits(attempt: Attempt) -> Exact:
    """How often each layer's forward makes the host wait for the device."""
    counts: dict[str, set[str]] = {}
    for item in attempt.transfers:
        name = f"microbatch {item.microbatch}, layer {item.layer}"
        counts.setdefault(name, set()).add(f"{item.host_reads} waits of the host")
    return {(Topic.WAITS, name): _joined(texts) for name, texts in counts.items()}


def _calls(attempt: Attempt) -> Exact:
    totals: Counter[str] = Counter()
    for path in attempt.paths:
        totals.update(path.calls)
    return {(Topic.CALLS, name): str(number) for name, number in totals.items()}


def _warnings(attempt: Attempt) -> Exact:
    found: Counter[str] = Counter(
        note.text for note in attempt.notes if "warning" in note.topic.lower()
    )
    return {(Topic.WARNINGS, text): f"{number} times" for text, number in found.items()}


def _measured(attempt: Attempt) -> dict[tuple[Topic, str], Measure]:
    found: dict[tuple[Topic, str], Measure] = {}

    def add(topic: Topic, item: str, value: float) -> None:
        timing = topic is Topic.TIMINGS
        found[topic, item] = Measure(
            value=value,
            unit="s" if timing else "MiB",
            ratio=TIME_RATIO if timing else MEMORY_RATIO,
            least=TIME_LEAST_S if timing else MEMORY_LEAST_MIB,
        )

    add(Topic.TIMINGS, "whole", attempt.duration_s)
    for phase, value in phase_seconds(attempt).items():
        add(Topic.TIMINGS, f"phase {phase}", value)
    peak = peak_memory_bytes(attempt)
    if peak:
        add(Topic.MEMORY, "peak of a rank", peak / 2**20)
    return found


def phase_seconds(attempt: Attempt) -> dict[str, float]:
    """Return the median over ranks of the time spent in each phase, in seconds."""
    by_phase: dict[str, list[float]] = {}
    for rank in attempt.ranks:
        spent: dict[str, float] = {}
        for timing in rank.phases:
            spent[str(timing.phase)] = spent.get(str(timing.phase), 0.0) + _length(timing)
        for phase, value in spent.items():
            by_phase.setdefault(phase, []).append(value)
    return {phase: median(values) for phase, values in by_phase.items()}


def _length(timing: PhaseTiming) -> float:
    return 0.0 if timing.end_s is None else timing.end_s - timing.begin_s


def peak_memory_bytes(attempt: Attempt) -> int:
    """Return the largest resident memory of any rank, 0 where none was recorded."""
    return max((rank.peak_rss_bytes or 0 for rank in attempt.ranks), default=0)


def _joined(texts: Iterable[str]) -> str:
    return "; ".join(sorted(texts))
