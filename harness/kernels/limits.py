"""Causal limits: how many keys each row of a segment may see, and which cells a tile stores."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.kernels.releases import MaskAlignment

_MASK_BLOCK = 64
"""Columns of the SM90 block that is masked per element."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """One batch entry (BSHD) or one entry of the prefix sums (THD).

    Attributes:
        index: Number of the entry.
        q_start: First row in the flattened query rows.
        q_count: Rows.
        k_start: First row in the flattened keys.
        k_count: Keys.
        offset: Uncompressed token position of row 0: row r may see (offset + r + 1) // ratio keys.
    """

    index: int
    q_start: int
    q_count: int
    k_start: int
    k_count: int
    offset: int


def alignment_offset(
    alignment: MaskAlignment, *, q_count: int, k_count: int, ratio: int, given: int | None
) -> int:
    """Return the offset of a segment's row 0 under the release's mask alignment.

    Args:
        alignment: Of the release.
        q_count: Rows of the segment.
        k_count: Keys of the segment.
        ratio: Uncompressed tokens per key.
        given: The caller's ``q_causal_offsets`` entry, None without.
    """
    if alignment is MaskAlignment.BOTTOM_RIGHT:
        return k_count * ratio - q_count
    return given or 0


def row_limit(segment: Segment, row: int, ratio: int) -> int:
    """Number of keys that local row ``row`` may see."""
    return min(max((segment.offset + row + 1) // ratio, 0), segment.k_count)


def row_limits(segment: Segment, ratio: int, *, rows: int | None = None) -> torch.Tensor:
    """Limits of the segment's first ``rows`` rows (all by default), int64 (rows,)."""
    count = segment.q_count if rows is None else rows
    positions = torch.arange(segment.offset + 1, segment.offset + 1 + count)
    if ratio != 1:
        positions = torch.div(positions, ratio, rounding_mode="floor")
    return positions.clamp_(0, segment.k_count)


def leaked_limits(limits: torch.Tensor, tokens_per_tile: int) -> torch.Tensor:
    """Columns that the SM90 32-head kernel stores per row (defect ``mask_leak``).

    The tile's blocks left of the right-most one are stored unmasked, so a row whose limit lies in
    such a block keeps scores up to the block's end.

    Args:
        limits: Limits of consecutive rows from local row 0, int64 (rows,).
        tokens_per_tile: Rows of one tile.

    Returns:
        Stored columns per row, int64 (rows,), never below ``limits``.
    """
    rows = limits.numel()
    if rows == 0:
        return limits
    tiles = -(-rows // tokens_per_tile)
    last = torch.arange(1, tiles + 1).mul_(tokens_per_tile).clamp_(max=rows) - 1
    largest = limits[last]
    unmasked = ((largest - 1).clamp_(min=0) // _MASK_BLOCK) * _MASK_BLOCK
    return torch.maximum(limits, unmasked.repeat_interleave(tokens_per_tile)[:rows])
