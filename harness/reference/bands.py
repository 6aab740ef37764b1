"""Overlap by distance: which due keys were found, by how far they lie behind their query.

A band speaks of the *due* keys at its distance: ``exact`` were picked, ``tie`` were not but a tie
stands in their place, ``missing`` were left out (in the total those are ``below`` or ``missing``,
by what the slot holds instead). So due, exact and tie of all bands sum up to those of the total.
Bands are powers of two: 0 (the query's own position), 1, 2..3, 4..7, and so on.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from harness.record.selection import OverlapSlice, OverlapStats

NUM_BANDS = 33
"""Enough for a distance of 2^31."""

_EDGES = torch.tensor([1 << i for i in range(NUM_BANDS - 1)], dtype=torch.int64)
_COLUMNS = ("rows", "rows_exhaustive", "due", "exact", "tie", "unranked")


class Bands:
    """Counts by distance band, summed over rows."""

    def __init__(self) -> None:
        self._counts = torch.zeros(NUM_BANDS, len(_COLUMNS), dtype=torch.int64)

    def add(
        self,
        *,
        positions: Tensor,
        due: Tensor,
        picked: Tensor,
        excused: Tensor,
        exhaustive: bool,
        windows: Tensor | None = None,
    ) -> None:
        """Add rows.

        Args:
            positions: (r,) int64 position of the rows in their sequence.
            due: (r, k) int64 reference keys relative to the sequence's first key, -1 for none.
            picked: (r, k) bool.
            excused: (r, k) bool.
            exhaustive: Whether all visible keys are due.
            windows: (r,) int64 keys that the kernel scored for each row; picked keys past them
                count as unranked. None where it is not known.
        """
        held = due >= 0
        band = torch.bucketize(positions.unsqueeze(1) - due, _EDGES.to(due.device), right=True)

        def per_row(mask: Tensor) -> Tensor:
            counts = torch.zeros(due.shape[0], NUM_BANDS, dtype=torch.int64, device=due.device)
            return counts.scatter_add_(1, band, mask.to(torch.int64))

        due_in_band = per_row(held)
        rows = (due_in_band > 0).sum(0)
        columns = (
            rows,
            rows if exhaustive else torch.zeros_like(rows),
            due_in_band.sum(0),
            per_row(picked & held).sum(0),
            per_row(excused & held).sum(0),
            self._unranked(per_row, picked & held, due, windows),
        )
        self._counts += torch.stack(columns, dim=1).cpu()

    @staticmethod
    def _unranked(
        per_row: Callable[[Tensor], Tensor], found: Tensor, due: Tensor, windows: Tensor | None
    ) -> Tensor:
        blind = torch.zeros_like(found) if windows is None else due >= windows.unsqueeze(1)
        return per_row(found & blind).sum(0)

    def slices(self) -> tuple[OverlapSlice, ...]:
        """Return the bands that any due key falls into, nearest first."""
        found = []
        for band, counts in enumerate(self._counts.tolist()):
            values = dict(zip(_COLUMNS, counts, strict=True))
            if values["due"]:
                missing = values["due"] - values["exact"] - values["tie"]
                stats = OverlapStats(**values, missing=missing)
                found.append(OverlapSlice(name=band_name(band), stats=stats))
        return tuple(found)


def band_name(band: int) -> str:
    """Return the name of a band.

    >>> band_name(0), band_name(1), band_name(9)
    ('distance 0', 'distance 1', 'distance 256..511')
    """
    low = 0 if band == 0 else 1 << (band - 1)
    high = 2 * low - 1
    return f"distance {low}" if high <= low else f"distance {low}..{high}"
