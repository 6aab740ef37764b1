"""A stratified sample of a rank's rows that always holds the rows where faults begin."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from harness.reference.rows import RowTable


def sample_rows(table: RowTable, rows: Literal["all"] | int, *, seed: int, topk: int) -> RowTable:
    """Return ``rows`` rows of a table, in row order; the same ones for the same arguments.

    First come the edges (``edge_rows``), all of them, even when they are more than ``rows``. The
    rest is filled up with valid rows: every segment gets a share in proportion to its rows, and
    inside a segment one row is drawn from each of as many equal stretches.

    Args:
        table: All rows of a rank.
        rows: Number of rows wanted, or ``all``.
        seed: Of the draw.
        topk: Keys picked per row, which decides where some of the edges lie.

    Raises:
        ValueError: when ``rows`` is below 1.
    """
    if rows == "all" or rows >= len(table):
        return table
    if rows < 1:
        raise ValueError(f"rows must be `all` or at least 1, found {rows}")
    chosen = edge_rows(table, topk=topk)
    free = table.valid & ~chosen
    wanted = rows - int(chosen.sum())
    if wanted > 0:
        generator = torch.Generator().manual_seed(seed)
        shares = _shares(torch.bincount(table.segment[free]), wanted)
        for segment in torch.nonzero(shares).flatten().tolist():
            candidates = torch.nonzero(free & (table.segment == segment)).flatten()
            chosen[_one_per_stretch(candidates, int(shares[segment]), generator)] = True
    return table.take(torch.nonzero(chosen).flatten())


def edge_rows(table: RowTable, *, topk: int) -> Tensor:
    """Mark the rows at which a limit, a window or a segment begins or ends, (R,) bool.

    These are, in each segment: the first and the last row, the last valid row and the first
    padding row; the rows whose limit is ``topk`` (the last that is due all its keys) and
    ``topk + 1``; and the rows of which a window that starts at the segment holds ``topk - 1``,
    ``topk`` and ``topk + 1`` keys.
    """
    first = table.row_in_segment == 0
    last = torch.ones_like(first)
    last[:-1] = first[1:]
    edges = first | last
    edges[:-1] |= table.valid[:-1] & ~table.valid[1:]
    edges[1:] |= table.valid[:-1] & ~table.valid[1:]
    edges |= (table.limits == topk) | (table.limits == topk + 1)
    return edges | ((table.row_in_segment + 1 - topk).abs() <= 1)


def _shares(sizes: Tensor, wanted: int) -> Tensor:
    """Share ``wanted`` rows out over segments of ``sizes`` rows, largest remainders first."""
    total = int(sizes.sum())
    wanted = min(wanted, total)
    if wanted == 0:
        return torch.zeros_like(sizes)
    shares = sizes * wanted // total
    remainders = sizes * wanted % total
    left = wanted - int(shares.sum())
    # A stable sort makes equal remainders go to the lower segment on every platform.
    order = torch.sort(remainders, descending=True, stable=True).indices[:left]
    shares[order] += 1
    return shares


def _one_per_stretch(candidates: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw one of ``candidates`` from each of ``count`` equal stretches."""
    bounds = torch.arange(count + 1) * candidates.numel() // count
    widths = bounds[1:] - bounds[:-1]
    draws = torch.rand(count, generator=generator, dtype=torch.float64)
    return candidates[bounds[:-1] + (draws * widths).long()]
