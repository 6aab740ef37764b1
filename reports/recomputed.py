"""Tables of what backward computed again, and of what ranks hold from microbatch to microbatch."""

from __future__ import annotations

from harness.record.memory import MemoryEvidence, growth_of
from reports.summary import RunSummary
from reports.table import Table, table
from reports.text import number_ranges

_MIB = 2**20


def replay_table(summary: RunSummary) -> Table:
    """Attention that backward computed again, against its forward."""
    rows: dict[tuple[str, ...], set[int]] = {}
    for item in summary.scenarios:
        for record in item.result.last.replays:
            row = (
                item.result.id,
                str(record.microbatch),
                str(record.layer),
                "a step" if record.scope == "step" else "backward",
                str(record.replays),
                record.group or "-",
                f"{record.rows_different} of {record.rows}, {record.rows_tied} tied",
                f"{len(record.tables_different)} of {record.tables}",
                "; ".join(record.differences) or "equal",
            )
            rows.setdefault(row, set()).add(record.global_rank)
    header = (
        "scenario",
        "microbatch",
        "layer",
        "within",
        "replays",
        "gathered over ranks",
        "rows with other keys",
        "other tables",
        "result",
        "global_rank",
    )
    lines = [(*row, number_ranges(ranks)) for row, ranks in rows.items()]
    return table("Attention computed again in backward", header, lines, code=(0,))


def memory_table(summary: RunSummary) -> Table:
    """What each rank held after its microbatches, and by how much that grew."""
    lines = []
    for item in summary.scenarios:
        by_rank: dict[int, list[MemoryEvidence]] = {}
        for record in item.result.last.memory:
            by_rank.setdefault(record.global_rank, []).append(record)
        for rank, records in sorted(by_rank.items()):
            first, last = records[len(records) // 3], records[-1]
            grown = {growth.figure: growth.per_microbatch for growth in growth_of(records)}
            lines.append(
                (
                    item.result.id,
                    str(rank),
                    str(len(records)),
                    f"{first.live_bytes} and {last.live_bytes}",
                    _grown(grown.get("live_bytes")),
                    f"{first.resident_bytes / _MIB:.0f} and {last.resident_bytes / _MIB:.0f}",
                    _grown(grown.get("resident_bytes")),
                )
            )
    header = (
        "scenario",
        "global_rank",
        "microbatches",
        "tensor bytes after the first third and at the end",
        "growth for each microbatch",
        "resident MiB, likewise",
        "growth for each microbatch",
    )
    return table("Memory from microbatch to microbatch", header, lines, code=(0,))


def _grown(per_microbatch: float | None) -> str:
    return "-" if per_microbatch is None else f"{per_microbatch:.0f} bytes"
