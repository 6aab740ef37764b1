"""Tables of a run as plain data: what the Markdown and HTML reports show, before any escaping."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from harness.record.environment import Environment
from harness.record.evidence import OverlapSlice, OverlapStats, PathEvidence
from harness.record.result import Attempt, RankOutcome, RunRecord
from harness.record.verdict import Outcome
from reports.overlap import RankOverlap, behaviour_totals, parts_by, stages
from reports.summary import Need, RunSummary, ScenarioView
from reports.text import number_ranges, ratio, seconds, shorten

MAX_ROWS = 40
"""Longest table of evidence; the rest is in the result file, and the table says so."""
MAX_SELECTION_ROWS = 400
"""Longest table of scenarios that are as expected."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A titled table.

    Attributes:
        code: Columns that hold identifiers, commands or other text to be shown as code.
        num_left_out: Rows that are not shown.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    code: tuple[int, ...] = ()
    num_left_out: int = 0


def _table(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    code: tuple[int, ...] = (),
    most: int = MAX_ROWS,
) -> Table:
    every = [tuple(row) for row in rows]
    return Table(
        title=title,
        header=tuple(header),
        rows=tuple(every[:most]),
        code=code,
        num_left_out=max(0, len(every) - most),
    )


def run_table(record: RunRecord) -> Table:
    """When and how the run was started, and how it ended."""
    rows = [
        ("started", record.started_at),
        ("finished", record.finished_at or "not finished"),
        ("ranks", f"{record.world_size} on {record.num_nodes} node(s)"),
        ("isolation", record.isolation),
        ("command", " ".join(record.command)),
        ("rerun", record.rerun),
    ]
    return _table("Run", ("what", "value"), rows, code=(1,))


def environment_table(environment: Environment) -> Table:
    """Versions and devices; what is not installed is said to be so."""
    rows = []
    for field in fields(environment):
        value = getattr(environment, field.name)
        if field.name not in ("gpus", "variables"):
            shown = "not found" if value is None else str(value)
            rows.append((field.name, shown))
    for gpu in environment.gpus:
        memory = f"{gpu.memory_bytes / 2**30:.0f} GiB"
        rows.append(("gpu", f"{gpu.name}, {gpu.capability}, {memory}, {gpu.uuid}"))
    if not environment.gpus:
        rows.append(("gpu", "none"))
    rows += [(f"variable {name}", value) for name, value in environment.variables.items()]
    return Table(title="Environment", header=("what", "value"), rows=tuple(rows), code=(1,))


def outcome_table(summary: RunSummary) -> Table:
    """Number of results per outcome and verdict."""
    rows = [
        (str(outcome), str(verdict), str(number))
        for (outcome, verdict), number in summary.verdicts.items()
    ]
    if summary.missing:
        rows.append(("no result", "-", str(len(summary.missing))))
    return _table("Outcomes", ("outcome", "verdict", "scenarios"), rows)


def scenario_table(summary: RunSummary) -> Table:
    """One row for every scenario, most urgent first."""
    header = (
        "outcome", "verdict", "scenario", "plan", "kernels", "overlap", "strict", "time", "with",
    )  # fmt: skip
    rows = [_scenario_row(item) for item in summary.scenarios]
    return Table(title="Scenarios", header=header, rows=tuple(rows), code=(2,))


def _scenario_row(item: ScenarioView) -> tuple[str, ...]:
    result = item.result
    proof = result.last.proof
    extra = [f"overlay {name}" for name in proof.overlays]
    extra += [f"injected {name}" for name in proof.injected]
    rank, strict = item.worst_rank, item.least_strict
    return (
        str(result.outcome),
        str(result.verdict),
        result.id,
        item.plan,
        item.kernels,
        "-" if rank is None else ratio(rank.overlap),
        "-" if strict is None else ratio(strict),
        seconds(item.duration_s),
        ", ".join(extra) or "-",
    )


def selection_table(summary: RunSummary) -> Table:
    """Overlap per ``cp_rank`` of the scenarios that have no block of their own."""
    rows = [
        (
            item.result.id,
            str(rank.cp_rank),
            ratio(rank.overlap),
            ratio(rank.strict),
            *_few(rank.total),
        )
        for item in summary.scenarios
        if item.need is Need.EXPECTED
        for rank in item.ranks
    ]
    header = ("scenario", "cp_rank", "overlap", "strict", "rows", "due", "exact", "tie")
    return _table("Selection per cp_rank", header, rows, code=(0,), most=MAX_SELECTION_ROWS)


def _few(total: OverlapStats) -> tuple[str, ...]:
    return (str(total.rows), str(total.due), str(total.exact), str(total.tie))


def not_run_table(summary: RunSummary) -> Table:
    """Scenarios that did not run and what they miss."""
    rows = [
        (item.result.id, item.result.last.missing_capability or "-")
        for item in summary.scenarios
        if item.result.outcome is Outcome.NOT_RUN
    ]
    rows += [
        (name, "no result: the run did not come to it, or its file is lost")
        for name in summary.missing
    ]
    return Table(title="Not run", header=("scenario", "missing"), rows=tuple(rows), code=(0,))


def evidence_tables(item: ScenarioView) -> tuple[Table, ...]:
    """All tables of one scenario's block; those without rows are left out."""
    attempt = item.result.last
    tables = [
        _rank_table(item),
        _seed_table(item.ranks),
        *_part_tables(attempt),
        _behaviour_table(attempt),
        _path_table(attempt),
        _ends_table(attempt),
        _attempts_table(item.result.attempts),
        _table(
            "Notes", ("topic", "text"), ((n.topic, shorten(n.text, 400)) for n in attempt.notes)
        ),
    ]
    return tuple(table for table in tables if table.rows)


def _counts(total: OverlapStats) -> tuple[str, ...]:
    return tuple(str(getattr(total, name)) for name in _COUNTS)


def _rank_table(item: ScenarioView) -> Table:
    ranks = [rank for part in (item.ranks, *item.other_ranks) for rank in part]
    rows = [
        (str(r.cp_rank), r.stage, ratio(r.overlap), ratio(r.strict), *_counts(r.total))
        for r in ranks
    ]
    title = "Overlap per cp_rank" + (f", {item.spread}" if item.spread else "")
    return _table(title, ("cp_rank", "stage", "overlap", "strict", *_COUNTS), rows)


def _seed_table(ranks: tuple[RankOverlap, ...]) -> Table:
    rows = [
        (str(rank.cp_rank), str(seed.seed), ratio(seed.overlap), ratio(seed.strict))
        for rank in ranks
        if rank.seeds_differ
        for seed in rank.seeds
    ]
    return _table("Overlap per seed", ("cp_rank", "seed", "overlap", "strict"), rows)


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
    return _table(title, ("part", "overlap", "strict", *_COUNTS), rows)


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
    return _table("Known faulty behaviours against the picks", header, rows, code=(0,))


def _path_table(attempt: Attempt) -> Table:
    """Paths, records that differ in place only drawn together."""
    ranks: dict[tuple[str, ...], set[int]] = {}
    for path in attempt.paths:
        ranks.setdefault(_path_row(path), set()).add(path.cp_rank)
    rows = [(number_ranges(who), *row) for row, who in ranks.items()]
    header = ("cp_rank", "microbatch", "plan", "from", "scorer", "fused", "calls", "reason")
    return _table("Path", header, rows)


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


def _ends_table(attempt: Attempt) -> Table:
    header = (
        "global_rank",
        "role",
        "host",
        "exit code",
        "signal",
        "deadline",
        "state",
        "last phase",
        "last journal line",
        "stacks",
    )
    rows = [_end_row(rank, attempt) for rank in attempt.ranks]
    return _table("How each rank ended", header, rows, code=(8, 9))


def _end_row(rank: RankOutcome, attempt: Attempt) -> tuple[str, ...]:
    fault = attempt.fault
    role = "completed" if rank.completed else "ended early"
    if fault is not None and rank.global_rank == fault.global_rank:
        role = "first fault"
    elif fault is not None and rank.global_rank in fault.victims:
        role = "victim"
    ended = f"{_signal_name(rank.signal)}{' by the harness' if rank.ended_by_harness else ''}"
    return (
        str(rank.global_rank),
        role,
        rank.host or "-",
        "-" if rank.exit_code is None else str(rank.exit_code),
        ended,
        str(rank.deadline or "-"),
        _state(rank),
        str(rank.last_phase or "-"),
        shorten(rank.last_line, 160),
        rank.stacks or "-",
    )


def _state(rank: RankOutcome) -> str:
    """What a rank was found at when its time was over: its process state, a collective or not."""
    parts = [] if rank.process_state is None else [f"process state {rank.process_state}"]
    if rank.waiting_in_collective is not None:
        parts.append("in a collective" if rank.waiting_in_collective else "not in a collective")
    return ", ".join(parts) or "-"


def _signal_name(number: int | None) -> str:
    if number is None:
        return "-"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _attempts_table(attempts: tuple[Attempt, ...]) -> Table:
    rows = [
        (
            str(attempt.number),
            str(attempt.verdict),
            ", ".join(attempt.secondary) or "-",
            attempt.started_at or "-",
            seconds(attempt.duration_s),
            attempt.isolation,
        )
        for attempt in attempts
    ]
    header = ("attempt", "verdict", "also", "started", "time", "isolation")
    return _table("Attempts", header, rows)
