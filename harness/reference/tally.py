"""Counts per row, and their sums over a rank, its sequences and its zigzag halves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.record.selection import OverlapSlice, OverlapStats
from harness.reference.marks import Judged, Mark
from harness.reference.rows import HALVES, RowTable

MAX_SEQUENCE_SLICES = 64
"""Sequences shown one by one; of a longer pack the worst ones, the others as one slice."""

_MARKED = {
    "exact": Mark.EXACT,
    "tie": Mark.TIE,
    "below": Mark.BELOW,
    "future": Mark.FUTURE,
    "foreign": Mark.FOREIGN,
    "duplicate": Mark.DUPLICATE,
    "out_of_range": Mark.OUT_OF_RANGE,
}
_NAMES = ("due", "missing", "unranked", *_MARKED)
_COLUMN = {name: column for column, name in enumerate(_NAMES)}


@dataclass(frozen=True, kw_only=True, slots=True)
class RowCounts:
    """Counts of each row, under the field names of ``OverlapStats``.

    Attributes:
        table: (R, fields) int64 on the CPU.
        gaps: (R,) float64.
    """

    table: Tensor
    gaps: Tensor

    @classmethod
    def zeros(cls, num_rows: int) -> RowCounts:
        """Return counts of rows that have not been judged."""
        return cls(
            table=torch.zeros(num_rows, len(_NAMES), dtype=torch.int64),
            gaps=torch.zeros(num_rows, dtype=torch.float64),
        )

    def take(self, index: Tensor) -> RowCounts:
        """Return the counts of the rows at ``index``."""
        return RowCounts(table=self.table[index], gaps=self.gaps[index])

    def of(self, name: str) -> Tensor:
        """Return (R,) int64, one count under its ``OverlapStats`` name."""
        return self.table[:, _COLUMN[name]]

    @property
    def num_out_of_bounds(self) -> Tensor:
        """(R,) int64, picks no row may hold."""
        return self.of("future") + self.of("foreign") + self.of("out_of_range")

    @property
    def num_wrong(self) -> Tensor:
        """(R,) int64, picks that are neither exact nor tie, plus the missing ones."""
        wrong = self.of("below") + self.of("duplicate") + self.of("missing")
        return wrong + self.num_out_of_bounds

    def put(
        self, index: Tensor, rows: RowTable, judged: Judged, topk: int, windows: Tensor | None
    ) -> None:
        """Write the counts of judged rows at ``index``.

        Args:
            index: Places in the table.
            rows: The judged rows.
            judged: Their slots.
            topk: Keys due at most.
            windows: (local rows,) int64, keys of its sequence that the kernel scored for each local
                row; None where it is not known, and every exact pick counts as ranked.
        """
        due = torch.where(rows.valid, rows.limits.clamp(max=topk), 0)
        counts = {name: judged.slots.of(mark).sum(1).cpu() for name, mark in _MARKED.items()}
        held = counts["exact"] + counts["tie"] + counts["below"]
        unranked = torch.zeros_like(held)
        if windows is not None:
            shown = windows[rows.row].to(judged.slots.keys.device).unsqueeze(1)
            blind = judged.slots.of(Mark.EXACT) & (judged.slots.keys >= shown)
            unranked = blind.sum(1).cpu()
        counts |= {"due": due, "missing": (due - held).clamp(min=0), "unranked": unranked}
        self.table[index] = torch.stack([counts[name] for name in _NAMES], dim=1)
        self.gaps[index] = judged.gaps.cpu()


def total(counts: RowCounts, table: RowTable, exhaustive: Tensor) -> OverlapStats:
    """Return the sums over all rows; ``rows`` counts the valid ones.

    Args:
        counts: Per row.
        table: The rows.
        exhaustive: (R,) bool.
    """
    groups = torch.zeros(len(table), dtype=torch.int64)
    return _by_group(counts, table, exhaustive, groups, 1)[0]


def by_half(counts: RowCounts, table: RowTable, exhaustive: Tensor) -> tuple[OverlapSlice, ...]:
    """Return the sums over each zigzag half that has rows, and over the tail."""
    tail = table.sequence < 0
    groups = torch.where(tail, len(HALVES), table.half)
    stats = _by_group(counts, table, exhaustive, groups, len(HALVES) + 1)
    names = (*(half.value for half in HALVES), "tail padding")
    present = set(groups.unique().tolist())
    return tuple(OverlapSlice(name=names[group], stats=stats[group]) for group in sorted(present))


def by_sequence(counts: RowCounts, table: RowTable, exhaustive: Tensor) -> tuple[OverlapSlice, ...]:
    """Return the sums over each sequence that has rows here, and over the tail.

    Of more than ``MAX_SEQUENCE_SLICES`` sequences, those with most wrong picks are shown, in order,
    and the others are summed up in one slice.
    """
    sequences, groups = table.sequence.unique(return_inverse=True)
    stats = _by_group(counts, table, exhaustive, groups, int(sequences.numel()))
    slices = [
        OverlapSlice(name="tail padding" if number < 0 else f"sequence {number}", stats=stat)
        for number, stat in zip(sequences.tolist(), stats, strict=True)
    ]
    if len(slices) <= MAX_SEQUENCE_SLICES:
        return tuple(slices)
    ranked = sorted(range(len(slices)), key=lambda i: (-slices[i].stats.num_wrong, i))
    shown = sorted(ranked[: MAX_SEQUENCE_SLICES - 1])
    hidden = ranked[MAX_SEQUENCE_SLICES - 1 :]
    others = sum((slices[i].stats for i in hidden), start=OverlapStats(rows=0))
    rest = OverlapSlice(name=f"{len(hidden)} other sequences", stats=others)
    return (*(slices[i] for i in shown), rest)


def _by_group(
    counts: RowCounts, table: RowTable, exhaustive: Tensor, groups: Tensor, num_groups: int
) -> list[OverlapStats]:
    """Sum up rows by group number, (R,) int64."""
    rows = torch.stack((table.valid.long(), exhaustive.long()), dim=1)
    sums = torch.zeros(num_groups, len(_NAMES) + 2, dtype=torch.int64)
    sums.index_add_(0, groups, torch.cat((rows, counts.table), dim=1))
    gaps = torch.zeros(num_groups, dtype=torch.float64)
    gaps.scatter_reduce_(0, groups, counts.gaps, "amax")
    names = ("rows", "rows_exhaustive", *_NAMES)
    return [
        OverlapStats(**dict(zip(names, row, strict=True)), largest_gap=gap)
        for row, gap in zip(sums.tolist(), gaps.tolist(), strict=True)
    ]
