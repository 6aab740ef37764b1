"""Tables on processes: how ranks and attempts ended, collectives, findings of the CUDA tools."""

from __future__ import annotations

import signal

from harness.record.result import Attempt, RankOutcome, ScenarioResult
from reports.faults import core_dump_text, sanitizer_text
from reports.findings import rate_texts
from reports.table import Table, table
from reports.text import number_ranges, seconds, shorten


def ends_table(attempt: Attempt) -> Table:
    """How each rank's process ended, and what it was doing."""
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
        "peak memory",
    )
    rows = [_end_row(rank, attempt) for rank in attempt.ranks]
    return table("How each rank ended", header, rows, code=(8, 9))


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
        _memory(rank.peak_rss_bytes),
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


def _memory(size: int | None) -> str:
    return "-" if size is None else f"{size / 2**20:.0f} MiB"


def phase_table(attempt: Attempt) -> Table:
    """Time spent in each phase: the longest and the shortest of all ranks."""
    spent: dict[str, dict[int, float]] = {}
    for rank in attempt.ranks:
        for timing in rank.phases:
            if timing.end_s is not None:
                ranks = spent.setdefault(str(timing.phase), {})
                time = timing.end_s - timing.begin_s
                ranks[rank.global_rank] = ranks.get(rank.global_rank, 0.0) + time
    rows = []
    for phase, ranks in spent.items():
        slowest = max(ranks, key=lambda number: ranks[number])
        rows.append(
            (
                phase, str(len(ranks)), f"{ranks[slowest]:.3f} s", str(slowest),
                f"{min(ranks.values()):.3f} s",
            )
        )  # fmt: skip
    header = ("phase", "ranks", "longest", "on global_rank", "shortest")
    return table("Time by phase", header, rows)


def collective_table(attempt: Attempt) -> Table:
    """The last collective call of every rank, ranks in the same call drawn together."""
    ranks: dict[tuple[str, str], list[int]] = {}
    for rank in attempt.ranks:
        call = rank.last_collective
        if call is not None:
            ended = "never came back" if call.end is None else call.end
            ranks.setdefault((call.text, ended), []).append(rank.global_rank)
    rows = [(number_ranges(who), text, end) for (text, end), who in ranks.items()]
    return table("Last collective call", ("global_rank", "call", "end"), rows, code=(1,))


def fault_tables(attempt: Attempt) -> tuple[Table, ...]:
    """Where ranks part company over collectives, and what the CUDA tools found."""
    found = None if attempt.fault is None else attempt.fault.collective
    calls = [] if found is None else [(str(c.global_rank), c.call.text) for c in found.calls]
    kind = "" if found is None else str(found.kind)
    return (
        table(f"Collective calls that part company: {kind}", ("global_rank", "call"), calls),
        table(
            "Findings of compute-sanitizer",
            ("level", "fault", "finding"),
            (
                (item.level or "-", "yes" if item.is_fault else "no", sanitizer_text(item))
                for item in attempt.sanitizer
            ),
        ),
        table(
            "CUDA core dumps",
            ("file", "dump"),
            ((item.file, core_dump_text(item)) for item in attempt.core_dumps),
            code=(0,),
        ),
    )


def attempts_table(result: ScenarioResult) -> Table:
    """Every attempt, the one that decides marked."""
    rows = [
        (
            str(attempt.number),
            str(attempt.verdict),
            ", ".join(attempt.secondary) or "-",
            "yes" if attempt is result.last else "no",
            attempt.started_at or "-",
            seconds(attempt.duration_s),
            attempt.isolation,
            attempt.cut_short or "-",
        )
        for attempt in result.attempts
    ]
    header = ("attempt", "verdict", "also", "decides", "started", "time", "isolation", "cut short")
    return table("Attempts", header, rows)


def rates_table(result: ScenarioResult) -> Table:
    """How often each verdict came in repeated attempts."""
    rows = [tuple(text.split(": ", 1)) for text in rate_texts(result)]
    return table("Rate over the attempts", ("verdict", "rate"), rows)
