"""Heat maps of overlap: ranks down, sequences or distances across, every number in its cell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from harness.record.selection import OverlapSlice, OverlapStats, SelectionEvidence
from reports.html.colours import ink_on, overlap_colour
from reports.html.drawing import CHARACTER_WIDTH, Box, Drawing, Key, Label
from reports.overlap import stages
from reports.text import counted, number_ranges, ratio

MAX_ROWS = 32
"""Most lines of a map; more ranks are drawn together, the least overlap of each group shown."""
FEW_RANKS = 8
"""Up to this many ranks each has a line, even where neighbours show the same."""
MAX_COLUMNS = 24
"""Most columns; more parts are drawn together in the same way."""
MAX_MAPS = 3
"""Most maps of one scenario."""

_TOP = 18.0
_CELL = 22.0
_WIDE, _NARROW = 62.0, 34.0

Cells = dict[tuple[int, str], OverlapStats]


def heat_drawings(selections: Sequence[SelectionEvidence]) -> tuple[Drawing, ...]:
    """Return maps of the stage that is shown first, by sequence and by distance, worst first.

    Maps of a single column tell nothing that the tables do not, and are left out.
    """
    stage = next(iter(stages(selections)), "")
    shown = [selection for selection in selections if selection.stage == stage]
    found: list[tuple[float, str, str, Cells]] = []
    for number in sorted({selection.microbatch for selection in shown}):
        part = [selection for selection in shown if selection.microbatch == number]
        for noun, cells in (
            ("sequence", _cells(part, lambda s: s.by_sequence)),
            ("distance", _cells(part, lambda s: s.by_distance)),
        ):
            if len(cells) > 1 and len({name for _, name in cells}) > 1:
                least = min(stats.overlap for stats in cells.values())
                found.append((least, f"microbatch {number}", noun, cells))
    found.sort(key=lambda map_: map_[0])
    drawings = [_drawing(cells, where, noun) for _, where, noun, cells in found[:MAX_MAPS]]
    if len(found) > MAX_MAPS:
        left_out = f"{counted(len(found) - MAX_MAPS, 'map')} with no less overlap not drawn"
        last = drawings[-1]
        drawings[-1] = replace(last, note=f"{last.note}; {left_out}".lstrip("; "))
    return tuple(drawings)


def _cells(
    selections: Iterable[SelectionEvidence],
    parts: Callable[[SelectionEvidence], tuple[OverlapSlice, ...]],
) -> Cells:
    """Add up what layers and seeds show of each rank and part."""
    cells: Cells = {}
    for selection in selections:
        for part in parts(selection):
            key = selection.cp_rank, part.name
            known = cells.get(key)
            cells[key] = part.stats if known is None else known + part.stats
    return cells


def _drawing(cells: Cells, where: str, noun: str) -> Drawing:
    every = sorted({rank for rank, _ in cells})
    names = list(dict.fromkeys(name for _, name in sorted(cells, key=_order)))
    parts = _grouped(names, MAX_COLUMNS)
    ranks = _grouped(every, MAX_ROWS) if len(every) <= FEW_RANKS else _alike(cells, every, names)
    left = 14 + CHARACTER_WIDTH * max(len(f"cp_rank {number_ranges(who)}") for who in ranks)
    width = _WIDE if len(parts) <= 12 else _NARROW
    boxes, labels = [], []
    for column, group in enumerate(parts):
        x = left + column * width
        labels.append(Label(x=x + width / 2, y=_TOP - 6, text=_short(group), anchor="middle"))
    for line, who in enumerate(ranks):
        y = _TOP + line * _CELL
        labels.append(Label(x=0, y=y + 15, text=f"cp_rank {number_ranges(who)}"))
        for column, group in enumerate(parts):
            found = [cells[key] for rank in who for name in group if (key := (rank, name)) in cells]
            if found:
                box = _box(found, who, group, left + column * width, y, width)
                boxes.append(box)
    notes = []
    if any(len(group) > 1 for group in (*ranks, *parts)):
        notes.append("neighbours are drawn together, each cell shows the least of them")
    least = min(cells.values(), key=lambda stats: stats.overlap)
    return Drawing(
        title=f"Overlap by cp_rank and {noun}, {where}",
        says=f"{counted(len({r for r, _ in cells}), 'cp_rank')} by {counted(len(names), noun)}; "
        f"least overlap {ratio(least.overlap)}",
        width=left + len(parts) * width,
        height=_TOP + len(ranks) * _CELL + 2,
        boxes=tuple(boxes),
        labels=tuple(labels),
        keys=tuple(
            Key(text=text, fill=overlap_colour(value))
            for text, value in (("1", 1.0), ("0.95", 0.95), ("0.5", 0.5), ("0", 0.0))
        ),
        note="; ".join(notes),
    )


def _alike(cells: Cells, ranks: Sequence[int], names: Sequence[str]) -> list[Sequence[int]]:
    """Draw neighbours that show the same together; if that leaves too many lines, any neighbours.

    Rank minus place is constant along consecutive ranks only, so gaps are never drawn over.
    """

    def shows(item: tuple[int, int]) -> tuple[object, ...]:
        place, rank = item
        parts = (cells.get((rank, name)) for name in names)
        return (rank - place, *(None if part is None else part.overlap for part in parts))

    groups = [[rank for _, rank in found] for _, found in groupby(enumerate(ranks), key=shows)]
    return list(groups) if len(groups) <= MAX_ROWS else _grouped(ranks, MAX_ROWS)


def _order(cell: tuple[int, str]) -> tuple[float, str]:
    numbers = re.findall(r"\d+", cell[1])
    return (float(numbers[0]) if numbers else -1.0), cell[1]


def _grouped[T](items: Sequence[T], most: int) -> list[Sequence[T]]:
    size = max(1, -(-len(items) // most))
    return [items[start : start + size] for start in range(0, len(items), size)]


def _short(names: Sequence[str]) -> str:
    """Return a column's name: its numbers, where it starts with a word."""
    first = re.sub(r"^[a-z]+ ", "", names[0])
    if len(names) == 1:
        return first if len(first) < 9 else first.partition("..")[0]
    return f"{first.partition('..')[0]}.."


def _box(
    found: Sequence[OverlapStats],
    ranks: Sequence[int],
    names: Sequence[str],
    x: float,
    y: float,
    width: float,
) -> Box:
    value = min(stats.overlap for stats in found)
    colour = overlap_colour(value)
    due = sum(stats.due for stats in found)
    hits = sum(stats.exact + stats.tie for stats in found)
    parts = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    return Box(
        x=x,
        y=y,
        width=width - 2,
        height=_CELL - 2,
        fill=colour,
        ink=ink_on(colour),
        title=f"cp_rank {number_ranges(ranks)}, {parts}: overlap {ratio(value)}, "
        f"{hits} of {due} due found",
        text=ratio(value) if width == _WIDE else f"{value:.2f}",
    )
