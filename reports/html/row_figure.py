"""Rows whose picks are wrong, against their limits: picked, due and visible on one line each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.record.selection import RowFinding, SelectionEvidence
from reports.html.colours import DUE, RIGHT, WRONG
from reports.html.drawing import Box, Drawing, Key, Label, Mark
from reports.overlap import worst
from reports.text import counted

MAX_ROWS = 4
"""Most rows that are drawn."""

_WIDTH = 900.0
_LEFT = 210.0
_RIGHT = 20.0
_LINE = 40.0


def row_drawing(selections: Sequence[SelectionEvidence]) -> Drawing | None:
    """Return a figure of the worst rows, None where no row is kept."""
    rows = list(_rows(selections))[:MAX_ROWS]
    if not rows:
        return None
    low = min(0, *(min((*row.picked, *row.wrong, 0)) for _, row in rows))
    high = max(max((row.limit, *row.picked, *row.wrong, *row.due)) for _, row in rows)
    boxes: list[Box] = []
    labels: list[Label] = []
    marks: list[Mark] = []
    for line, (record, row) in enumerate(rows):
        y = line * _LINE + 4
        place = f"cp_rank {record.cp_rank}, row {row.row}"
        labels.append(Label(x=0, y=y + 9, text=place))
        labels.append(Label(x=0, y=y + 22, text=f"sequence {row.sequence}, limit {row.limit}"))
        start, end = _at(0, low, high), _at(row.limit, low, high)
        boxes.append(
            Box(
                x=start,
                y=y + 4,
                width=end - start,
                height=14,
                fill="#d9d9d9",
                title=f"{place}: keys 0 to {row.limit - 1} of the sequence are visible",
            )
        )
        marks += _marks(row, low, high, y + 11)
    return Drawing(
        title="Picks against limits, rows with the most wrong picks",
        says="; ".join(_says(record, row) for record, row in rows),
        width=_WIDTH,
        height=len(rows) * _LINE + 4,
        boxes=tuple(boxes),
        labels=tuple(labels),
        marks=tuple(marks),
        keys=(
            Key(text="visible keys", fill="#d9d9d9"),
            Key(text="picked, right", fill=RIGHT, mark="dot"),
            Key(text="picked, wrong", fill=WRONG, mark="cross"),
            Key(text="due, not picked", fill=DUE, mark="ring"),
        ),
        note=f"keys are counted from the sequence's first one, {low} to {high}; of each kind a row "
        "keeps its first 16",
    )


def _rows(
    selections: Sequence[SelectionEvidence],
) -> Iterator[tuple[SelectionEvidence, RowFinding]]:
    """The worst rows: of the worst record first, then one of each further rank."""
    records = [record for record in selections if record.worst_rows]
    first = worst(records)
    if first is None:
        return
    ranked = sorted(first.worst_rows, key=_badness)
    yield from ((first, row) for row in ranked[:2])
    seen = {first.cp_rank}
    for record in sorted(records, key=lambda r: r.total.overlap):
        if record.cp_rank not in seen:
            seen.add(record.cp_rank)
            yield record, min(record.worst_rows, key=_badness)


def _badness(row: RowFinding) -> tuple[int, int]:
    return -len(row.wrong), -len(row.due)


def _at(key: int, low: int, high: int) -> float:
    return _LEFT + (key - low) / max(1, high - low) * (_WIDTH - _LEFT - _RIGHT)


def _marks(row: RowFinding, low: int, high: int, y: float) -> Iterator[Mark]:
    wrong = set(row.wrong)
    for kind, fill, keys, text in (
        ("dot", RIGHT, [key for key in row.picked if key not in wrong], "picked, right"),
        ("ring", DUE, row.due, "due, not picked"),
        ("cross", WRONG, row.wrong, "picked, wrong"),
    ):
        for key in keys:
            x = _at(key, low, high)
            yield Mark(x=x, y=y, kind=kind, fill=fill, title=f"key {key}: {text}")


def _says(record: SelectionEvidence, row: RowFinding) -> str:
    return (
        f"cp_rank {record.cp_rank} row {row.row} may see {counted(row.limit, 'key')}, "
        f"{len(row.wrong)} shown picks wrong, {len(row.due)} shown keys due and not picked"
    )
