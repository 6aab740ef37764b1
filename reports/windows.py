"""Kernel windows condensed: how many keys the scoring kernel showed each row, and how many due."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.record.selection import WindowEvidence
from reports.text import counted, number_ranges


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowTotal:
    """The windows of one ``cp_rank``, microbatch and layer, added up over seeds.

    Attributes:
        first: Local row, window and limit of the first row that differs, None where none does.
    """

    cp_rank: int
    microbatch: int
    layer: int
    rows: int
    rows_equal: int
    rows_short: int
    rows_long: int
    first: tuple[int, int, int] | None

    @property
    def rows_different(self) -> int:
        """Rows whose window is not their limit."""
        return self.rows - self.rows_equal


def window_totals(windows: Iterable[WindowEvidence]) -> tuple[WindowTotal, ...]:
    """Add up the records of each place, in order of microbatch, layer and rank."""
    places: dict[tuple[int, int, int], list[WindowEvidence]] = {}
    for record in windows:
        place = (record.microbatch, record.layer, record.cp_rank)
        places.setdefault(place, []).append(record)
    return tuple(_total(places[place]) for place in sorted(places))


def _total(records: list[WindowEvidence]) -> WindowTotal:
    place = records[0]
    return WindowTotal(
        cp_rank=place.cp_rank,
        microbatch=place.microbatch,
        layer=place.layer,
        rows=sum(record.rows for record in records),
        rows_equal=sum(record.rows_equal for record in records),
        rows_short=sum(record.rows_short for record in records),
        rows_long=sum(record.rows_long for record in records),
        first=next(filter(None, map(_first, records)), None),
    )


def _first(record: WindowEvidence) -> tuple[int, int, int] | None:
    if record.first_different is None or record.window is None or record.limit is None:
        return None
    return record.first_different, record.window, record.limit


def window_text(windows: Iterable[WindowEvidence]) -> str:
    """Say in one line what the kernel hid or showed too much of; empty without evidence.

    Named is the place with the largest part of rows that differ.
    """
    totals = window_totals(windows)
    if not totals:
        return ""
    worst = max(totals, key=lambda total: total.rows_different / max(1, total.rows))
    if not worst.rows_different:
        rows = sum(total.rows for total in totals)
        return f"equal to the limit on all {counted(rows, 'row')}"
    where = f"cp_rank {worst.cp_rank}"
    if len({(total.microbatch, total.layer) for total in totals}) > 1:
        where += f", microbatch {worst.microbatch}, layer {worst.layer}"
    others = {t.cp_rank for t in totals if t.rows_different} - {worst.cp_rank}
    text = f"{where}: {_rows_text(worst)}"
    if worst.first is not None:
        text += ", " + _first_text(*worst.first)
    return text + (f"; also on cp_rank {number_ranges(others)}" if others else "")


def _rows_text(total: WindowTotal) -> str:
    parts = []
    for number, word in ((total.rows_short, "short"), (total.rows_long, "long")):
        if number:
            parts.append(f"{number} of {counted(total.rows, 'row')} {word}")
    return ", ".join(parts)


def _first_text(row: int, window: int, limit: int) -> str:
    return f"first row {row} sees {counted(window, 'key')} of {limit} due"
