"""Tables of what the optional collectors found, over all scenarios of a run."""

from __future__ import annotations

from harness.record.copies import CopyEvidence
from reports.graphs import blocker_table, readiness_table, warning_table
from reports.groups import group_table
from reports.recomputed import memory_table, replay_table
from reports.summary import RunSummary
from reports.table import Table, table
from reports.text import number_ranges, shorten
from reports.transfers import transfer_table, wait_table


def collected_tables(summary: RunSummary) -> tuple[Table, ...]:
    """Tables with rows, in the order of the collectors."""
    tables = (
        state_table(summary),
        group_table(summary),
        wait_table(summary),
        transfer_table(summary),
        readiness_table(summary),
        warning_table(summary),
        blocker_table(summary),
        launch_table(summary),
        copy_table(summary),
        replay_table(summary),
        memory_table(summary),
    )
    return tuple(found for found in tables if found.rows)


def state_table(summary: RunSummary) -> Table:
    """State that was looked at, and what moved."""
    rows: dict[tuple[str, ...], set[int]] = {}
    for item in summary.scenarios:
        for record in item.result.last.states:
            moved = "; ".join(f"{c.name}: {c.before} -> {c.after}" for c in record.moved)
            row = (
                item.result.id,
                str(record.microbatch),
                f"{record.groups} groups, {record.settings} settings, {record.dispatch} globals",
                ", ".join(record.carriers) or "-",
                "-" if record.live_tensors is None else str(record.live_tensors),
                shorten(moved, 300) or "nothing",
            )
            rows.setdefault(row, set()).add(record.cp_rank)
    header = ("scenario", "microbatch", "looked at", "carriers", "live tensors", "moved", "cp_rank")
    lines = [(*row, number_ranges(ranks)) for row, ranks in rows.items()]
    return table("State before and after each microbatch", header, lines, code=(0,))


def launch_table(summary: RunSummary) -> Table:
    """Further launches against the first one."""
    rows: dict[tuple[str, ...], set[int]] = {}
    for item in summary.scenarios:
        for record in item.result.last.launches:
            same = record.why_not or ("equal" if record.equal else "differs")
            output = f"{record.output_difference:g}" if record.output_compared else "-"
            gap = record.gradient_difference
            row = (
                item.result.id,
                str(record.microbatch),
                str(record.layer),
                record.launch,
                same,
                f"{record.rows_different} of {record.rows}, {record.rows_tied} tied",
                f"{record.calls[0]} and {record.calls[1]}",
                output,
                "-" if gap is None else f"{gap:g}",
            )
            rows.setdefault(row, set()).add(record.cp_rank)
    header = (
        "scenario",
        "microbatch",
        "layer",
        "launch",
        "result",
        "rows with other keys",
        "scoring calls",
        "output off by",
        "gradients off by",
        "cp_rank",
    )
    lines = [(*row, number_ranges(ranks)) for row, ranks in rows.items()]
    return table("Further launches of the same pack", header, lines, code=(0,))


def copy_table(summary: RunSummary) -> Table:
    """Direct copies of layout tables against pinned ones."""
    rows: dict[tuple[str, ...], set[int]] = {}
    for item in summary.scenarios:
        for record in item.result.last.copies:
            row = (item.result.id, record.table, str(record.cp_size), *_times(record))
            rows.setdefault(row, set()).add(record.global_rank)
    header = (
        "scenario",
        "table",
        "CP",
        "bytes",
        "equal",
        "direct over pinned",
        "quartiles",
        "global_rank",
    )
    lines = [(*row, number_ranges(ranks)) for row, ranks in rows.items()]
    return table("Copies of layout tables to the device", header, lines, code=(0, 1))


def _times(record: CopyEvidence) -> tuple[str, ...]:
    if record.why_not:
        return (str(record.bytes), f"not_run: {record.why_not}", "-", "-")
    equal = "yes" if record.equal else "no"
    spread = f"{record.ratio_low:.2f} to {record.ratio_high:.2f}"
    return (str(record.bytes), equal, f"{record.ratio:.2f}", spread)
