"""The table of groups that microbatches ran on, where they have groups of their own."""

from __future__ import annotations

from harness.record.groups import USES, GroupEvidence, GroupMoment
from reports.summary import RunSummary
from reports.table import Table, table
from reports.text import number_ranges, shorten


def group_table(summary: RunSummary) -> Table:
    """Effective groups, what went by them, and what the layers held afterwards.

    Microbatches on the configured group that gave it back are left out: that is the usual case.
    """
    rows: dict[tuple[str, ...], set[int]] = {}
    for item in summary.scenarios:
        for record in item.result.last.groups:
            if record.contract == "configured" and all(map(_is_back, record.moments)):
                continue
            row = (
                item.result.id,
                str(record.microbatch),
                number_ranges(record.effective),
                number_ranges(record.configured),
                record.contract,
                record.set_by,
                _uses(record),
                _left(record),
                record.ended_by or "-",
            )
            rows.setdefault(row, set()).add(record.global_rank)
    header = (
        "scenario",
        "microbatch",
        "runs on ranks",
        "configured",
        "given",
        "set by",
        "group sizes seen",
        "left behind",
        "ended by",
        "global_rank",
    )
    lines = [(*row, number_ranges(ranks)) for row, ranks in rows.items()]
    return table("Groups of each microbatch", header, lines, code=(0,))


def _uses(record: GroupEvidence) -> str:
    """Sizes by use, such as ``rotary 2, gather 2, scoring 2 (replay 1)``."""
    parts = []
    for what in USES:
        first = sorted({use.size for use in record.uses if use.what == what and not use.replay})
        again = sorted({use.size for use in record.uses if use.what == what and use.replay})
        if not first and not again:
            continue
        text = f"{what} {'/'.join(map(str, first)) or '-'}"
        parts.append(text if again in ([], first) else f"{text} (replay {again[0]})")
    return ", ".join(parts) or "-"


def _is_back(moment: GroupMoment) -> bool:
    return moment.ranks == moment.due


def _left(record: GroupEvidence) -> str:
    left = [
        f"{moment.holder} holds {number_ranges(moment.ranks) or 'no group'} behind {moment.when}"
        for moment in record.moments
        if not _is_back(moment)
    ]
    return shorten("; ".join(dict.fromkeys(left)), 300) or "nothing"
