"""Selection evidence condensed: overlap per ``cp_rank``, per seed and per part of the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add

from harness.record.selection import (
    BehaviourEvidence,
    OverlapSlice,
    OverlapStats,
    RowFinding,
    SelectionEvidence,
)

SHOWN_STAGE = "final"
"""Stage whose overlap is shown where there is a choice: what attention was given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedOverlap:
    """Least overlap of one rank over the records of one seed."""

    seed: int
    overlap: float
    strict: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RankOverlap:
    """Overlap of one ``cp_rank`` at one stage.

    Attributes:
        overlap: Least tie-aware overlap over microbatches, layers and seeds.
        strict: Least strict overlap over the same.
        total: Counts summed over the same.
    """

    cp_rank: int
    stage: str
    overlap: float
    strict: float
    total: OverlapStats
    seeds: tuple[SeedOverlap, ...]

    @property
    def seeds_differ(self) -> bool:
        """True when the seeds do not all show the same overlap."""
        return len({(seed.overlap, seed.strict) for seed in self.seeds}) > 1


def stages(selections: Iterable[SelectionEvidence]) -> tuple[str, ...]:
    """Return the stages worth showing, the one to show first.

    The wrapper stage is judged for bounds and repeats alone, so it shows only when one was found.
    """
    shown = {s.stage for s in selections if s.stage == SHOWN_STAGE or s.total.num_wrong}
    return tuple(sorted(shown, key=lambda stage: (stage != SHOWN_STAGE, stage)))


def rank_overlaps(selections: Iterable[SelectionEvidence], stage: str) -> tuple[RankOverlap, ...]:
    """Return the overlap of each ``cp_rank`` at a stage, in rank order."""
    by_rank: dict[int, list[SelectionEvidence]] = {}
    for selection in selections:
        if selection.stage == stage:
            by_rank.setdefault(selection.cp_rank, []).append(selection)
    return tuple(_rank_overlap(rank, stage, by_rank[rank]) for rank in sorted(by_rank))


def _rank_overlap(cp_rank: int, stage: str, records: list[SelectionEvidence]) -> RankOverlap:
    seeds = tuple(
        SeedOverlap(
            seed=seed,
            overlap=min(r.total.overlap for r in records if r.seed == seed),
            strict=min(r.total.strict_overlap for r in records if r.seed == seed),
        )
        for seed in sorted({record.seed for record in records})
    )
    return RankOverlap(
        cp_rank=cp_rank,
        stage=stage,
        overlap=min(seed.overlap for seed in seeds),
        strict=min(seed.strict for seed in seeds),
        total=merged(record.total for record in records),
        seeds=seeds,
    )


def spread(selections: Iterable[SelectionEvidence]) -> str:
    """Say over what a rank's least overlap is taken, empty when there is one record per rank.

    Returns:
        Such as ``least of 3 seeds and 2 microbatches``.
    """
    records = list(selections)
    parts = []
    for noun in ("seed", "microbatch", "layer"):
        number = len({getattr(record, noun) for record in records})
        if number > 1:
            parts.append(f"{number} {noun}{'es' if noun.endswith('ch') else 's'}")
    return f"least of {' and '.join(parts)}" if parts else ""


def merged(parts: Iterable[OverlapStats]) -> OverlapStats:
    """Return the statistics of all rows of the parts together."""
    return reduce(add, parts, OverlapStats(rows=0))


def parts_by(
    selections: Iterable[SelectionEvidence],
    stage: str,
    part: Callable[[SelectionEvidence], tuple[OverlapSlice, ...]],
    *,
    per_microbatch: bool = False,
) -> tuple[OverlapSlice, ...]:
    """Return the slices of a stage added up over ranks, layers and seeds, in order of appearance.

    Args:
        selections: Evidence of all stages.
        stage: Stage to take.
        part: Picks the slices, such as ``lambda s: s.by_half``.
        per_microbatch: Keep microbatches apart, for slices whose names are about one pack.
    """
    found: dict[str, OverlapStats] = {}
    for selection in selections:
        if selection.stage != stage:
            continue
        for item in part(selection):
            name = f"microbatch {selection.microbatch} {item.name}" if per_microbatch else item.name
            known = found.get(name)
            found[name] = item.stats if known is None else known + item.stats
    return tuple(OverlapSlice(name=name, stats=stats) for name, stats in found.items())


def worst(selections: Iterable[SelectionEvidence]) -> SelectionEvidence | None:
    """Return the record with the least overlap that has a wrong pick, None when none has.

    Of equal ones, the one with more wrong picks, then the first.
    """
    wrong = [selection for selection in selections if selection.total.num_wrong]
    return min(wrong, key=lambda s: (s.total.overlap, -s.total.num_wrong), default=None)


def worst_row(
    selections: Iterable[SelectionEvidence],
) -> tuple[SelectionEvidence, RowFinding] | None:
    """Return the row with the most wrong or missing keys, preferring the worst record's rows."""
    records = [selection for selection in selections if selection.worst_rows]
    record = worst(records)
    if record is None:
        return None
    return record, max(record.worst_rows, key=lambda row: (len(row.wrong), len(row.due)))


@dataclass(frozen=True, kw_only=True, slots=True)
class BehaviourTotal:
    """One faulty behaviour's prediction against the picks of all ranks together."""

    name: str
    rows: int
    rows_matching: int
    rows_telling: int
    rows_exhaustive: int
    rows_exhaustive_exact: int
    rows_beyond_window: int
    mismatch: tuple[int, int] | None
    """``cp_rank`` and local row of the first row that the prediction does not explain."""

    @property
    def holds(self) -> bool:
        """True when the prediction explains every row, and tells something in one."""
        return self.rows == self.rows_matching and self.rows_telling > 0


def behaviour_totals(evidence: Iterable[BehaviourEvidence]) -> tuple[BehaviourTotal, ...]:
    """Add the records of each behaviour up, in order of appearance."""
    by_name: dict[str, list[BehaviourEvidence]] = {}
    for record in evidence:
        by_name.setdefault(record.name, []).append(record)
    return tuple(_behaviour_total(name, records) for name, records in by_name.items())


def _behaviour_total(name: str, records: list[BehaviourEvidence]) -> BehaviourTotal:
    mismatches = [(r.cp_rank, r.first_mismatch) for r in records if r.first_mismatch is not None]
    return BehaviourTotal(
        name=name,
        rows=sum(r.rows for r in records),
        rows_matching=sum(r.rows_matching for r in records),
        rows_telling=sum(r.rows_telling for r in records),
        rows_exhaustive=sum(r.rows_exhaustive for r in records),
        rows_exhaustive_exact=sum(r.rows_exhaustive_exact for r in records),
        rows_beyond_window=sum(r.rows_beyond_window for r in records),
        mismatch=min(mismatches, default=None),
    )
