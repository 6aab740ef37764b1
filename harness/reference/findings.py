"""The worst rows of a selection, shown in full so that a reader can check one by hand."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.record.selection import RowFinding
from harness.reference.marks import WRONG_MARKS, Judged, Mark
from harness.reference.rows import RowTable

MAX_FINDINGS = 4
MAX_KEYS = 16


class WorstRows:
    """Keeps the rows with picks out of bounds first, then those with most wrong, then the first."""

    def __init__(self) -> None:
        self._kept: list[tuple[tuple[bool, int, int], RowFinding]] = []

    def add(self, rows: RowTable, judged: Judged, due: Tensor, wrong: Tensor, oob: Tensor) -> None:
        """Offer r rows.

        Args:
            rows: The r rows.
            judged: Their slots.
            due: (r, k) int64 reference keys, -1 for none.
            wrong: (r,) int64 wrong and missing picks.
            oob: (r,) int64 of these out of bounds.
        """
        candidates = wrong.nonzero().flatten()
        if not candidates.numel():
            return
        candidates = candidates[torch.argsort(rows.row[candidates])]
        rank = (oob[candidates] > 0).long() * (1 << 40) + wrong[candidates]
        order = torch.sort(rank, descending=True, stable=True).indices[:MAX_FINDINGS]
        for index in candidates[order].tolist():
            key = (not bool(oob[index] > 0), -int(wrong[index]), int(rows.row[index]))
            if len(self._kept) == MAX_FINDINGS and key > self._kept[-1][0]:
                break
            self._kept.append((key, _finding(rows, judged, due, index)))
        self._kept = sorted(self._kept, key=lambda item: item[0])[:MAX_FINDINGS]

    def findings(self) -> tuple[RowFinding, ...]:
        """Return the kept rows, worst first."""
        return tuple(finding for _, finding in self._kept)


def _finding(rows: RowTable, judged: Judged, due: Tensor, index: int) -> RowFinding:
    keys, marks = judged.slots.keys[index], judged.slots.marks[index]
    wrong = torch.isin(marks, torch.tensor(WRONG_MARKS, device=marks.device))
    left_out = (due[index] >= 0) & ~judged.picked[index] & ~judged.excused[index]

    def first(values: Tensor, chosen: Tensor) -> tuple[int, ...]:
        return tuple(values[chosen][:MAX_KEYS].tolist())

    return RowFinding(
        row=int(rows.row[index]),
        position=int(rows.position[index]),
        sequence=int(rows.sequence[index]),
        limit=int(rows.limits[index]),
        picked=first(keys, marks != Mark.EMPTY),
        wrong=first(keys, wrong),
        due=first(due[index], left_out),
    )
