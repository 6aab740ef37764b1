"""Tables of one scenario's evidence as plain data, as the Markdown report shows them."""

from __future__ import annotations

from harness.record.path import PathEvidence
from harness.record.result import Attempt
from harness.record.selection import OverlapSlice, OverlapStats
from reports.call_tables import call_table, value_table
from reports.overlap import RankOverlap, behaviour_totals, parts_by, stages
from reports.path_tables import path_tables
from reports.plain_tables import plain_tables
from reports.rank_tables import (
    attempts_table,
    collective_table,
    ends_table,
    fault_tables,
    rates_table,
)
from reports.summary import ScenarioView
from reports.table import MAX_ROWS, Table, table
from reports.text import number_ranges, ratio, shorten
from reports.windows import window_totals

_COUNTS = (
    "rows",
    "due",
    "exact",
    "tie",
    "below",
    "future",
    "foreign",
    "out_of_range",
    "missing",
    "duplicate",
)


def evidence_tables(item: ScenarioView) -> tuple[Table, ...]:
    """All tables of one scenario's block; those without rows are left out."""
    attempt = item.result.last
    tables = [
        _rank_table(item),
        _seed_table(item.ranks),
        *_part_tables(attempt),
        _window_table(attempt),
        _behaviour_table(attempt),
        *path_tables(attempt),
        _path_table(attempt),
        call_table(attempt.calls),
        value_table(attempt.values),
        *plain_tables(attempt),
        *fault_tables(attempt),
        ends_table(attempt),
        collective_table(attempt),
        attempts_table(item.result),
        rates_table(item.result),
        table("Notes", ("topic", "text"), ((n.topic, shorten(n.text, 400)) for n in attempt.notes)),
    ]
    return tuple(found for found in tables if found.rows)


def _counts(total: OverlapStats) -> tuple[str, ...]:
    return tuple(str(getattr(total, name)) for name in _COUNTS)


def _rank_table(item: ScenarioView) -> Table:
    """Overlap per rank; where several records make one, least ratios and those of all rows.

    The counts are added up, so the ratios that they make stand beside the least ones.
    """
    ranks = [rank for part in (item.ranks, *item.other_ranks) for rank in part]
    if not item.spread:
        rows = [
            (str(r.cp_rank), r.stage, ratio(r.overlap), ratio(r.strict), *_counts(r.total))
            for r in ranks
        ]
        return table(
            "Overlap per cp_rank", ("cp_rank", "stage", "overlap", "strict", *_COUNTS), rows
        )
    pooled = [
        (
            *(str(r.cp_rank), r.stage, ratio(r.overlap), ratio(r.strict)),
            *(ratio(r.total.overlap), ratio(r.total.strict_overlap), *_counts(r.total)),
        )
        for r in ranks
    ]
    header = (
        "cp_rank", "stage", "least overlap", "least strict", "overlap of all rows",
        "strict of all rows", *_COUNTS,
    )  # fmt: skip
    title = f"Overlap per cp_rank, {item.spread}; counts and the last two ratios over all of them"
    return table(title, header, pooled)


def _seed_table(ranks: tuple[RankOverlap, ...]) -> Table:
    rows = [
        (str(rank.cp_rank), str(seed.seed), ratio(seed.overlap), ratio(seed.strict))
        for rank in ranks
        if rank.seeds_differ
        for seed in rank.seeds
    ]
    return table("Overlap per seed", ("cp_rank", "seed", "overlap", "strict"), rows)


def _part_tables(attempt: Attempt) -> list[Table]:
    stage = next(iter(stages(attempt.selections)), "")
    halves = parts_by(attempt.selections, stage, lambda s: s.by_half)
    sequences = parts_by(attempt.selections, stage, lambda s: s.by_sequence, per_microbatch=True)
    distances = parts_by(attempt.selections, stage, lambda s: s.by_distance)
    return [
        _part_table("Overlap by half", halves),
        _part_table("Overlap by sequence", sequences),
        _part_table("Overlap by distance from the query", distances),
    ]


def _part_table(title: str, parts: tuple[OverlapSlice, ...]) -> Table:
    """Parts in their own order while they fit, else the worst ones first."""
    if len(parts) > MAX_ROWS:
        parts = tuple(sorted(parts, key=lambda part: part.stats.overlap))
    rows = [
        (
            part.name,
            ratio(part.stats.overlap),
            ratio(part.stats.strict_overlap),
            *_counts(part.stats),
        )
        for part in parts
    ]
    return table(title, ("part", "overlap", "strict", *_COUNTS), rows)


def _window_table(attempt: Attempt) -> Table:
    header = (
        "cp_rank",
        "microbatch",
        "layer",
        "rows",
        "equal",
        "short",
        "long",
        "first different row",
        "keys shown",
        "keys due",
    )
    rows = [
        (
            str(total.cp_rank),
            str(total.microbatch),
            str(total.layer),
            str(total.rows),
            str(total.rows_equal),
            str(total.rows_short),
            str(total.rows_long),
            *("-" if total.first is None else str(number) for number in total.first or range(3)),
        )
        for total in window_totals(attempt.windows)
    ]
    return table("Keys shown by the scoring kernel", header, rows)


def _behaviour_table(attempt: Attempt) -> Table:
    header = (
        "behaviour",
        "explains all",
        "rows matching",
        "rows telling",
        "rows exhaustive exact",
        "rows beyond window",
    )
    rows = [
        (
            total.name,
            "yes" if total.holds else "no",
            f"{total.rows_matching} of {total.rows}",
            str(total.rows_telling),
            f"{total.rows_exhaustive_exact} of {total.rows_exhaustive}",
            str(total.rows_beyond_window),
        )
        for total in behaviour_totals(attempt.behaviours)
    ]
    return table("Known faulty behaviours against the picks", header, rows, code=(0,))


def _path_table(attempt: Attempt) -> Table:
    """Paths, records that differ in place only drawn together."""
    ranks: dict[tuple[str, ...], set[int]] = {}
    for path in attempt.paths:
        ranks.setdefault(_path_row(path), set()).add(path.cp_rank)
    rows = [(number_ranges(who), *row) for row, who in ranks.items()]
    header = ("cp_rank", "microbatch", "plan", "from", "scorer", "fused", "calls", "reason")
    return table("Path", header, rows)


def _path_row(path: PathEvidence) -> tuple[str, ...]:
    calls = ", ".join(f"{name} {count}" for name, count in path.calls.items())
    return (
        str(path.microbatch),
        path.plan,
        path.plan_source,
        path.scorer,
        "yes" if path.fused else "no",
        calls or "none",
        path.reason,
    )
