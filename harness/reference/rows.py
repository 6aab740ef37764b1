"""Row descriptions: which keys each local query row of a rank may see, as tensors.

``harness.layout`` speaks of segments; here they become one entry a row, which is what a comparison
of picks needs. Only the rank's own rows are expanded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from harness.layout import Half, Pack, Segment, rank_segments

HALVES = (Half.FRONT, Half.BACK, Half.WHOLE)
"""``RowTable.half`` holds indices into this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowTable:
    """Rows of one rank, or some of them. All tensors are (R,) int64 on the CPU unless said.

    Keys are counted in packed order (padded, over all sequences); "position" counts inside a
    sequence.

    Attributes:
        row: Local row, an index into the rank's q, w and picks.
        segment: Index of the row's segment in ``rank_segments`` order.
        row_in_segment: Index of the row in its segment.
        sequence: Index of the row's sequence, -1 for tail padding.
        half: Index into ``HALVES``.
        position: Position in the sequence (in the tail: in the rank's tail rows).
        starts: Packed position of the first key of the row's own range (its sequence's keys; in
            the tail, the keys behind the last sequence).
        limits: Visible keys, counted from ``starts``. A padding row inside a sequence has one too.
        key_lengths: Keys in the row's own range, padding included; beyond them a pick is foreign.
        valid: (R,) bool, False for padding rows.
        num_local_rows: Rows of the rank, whether in this table or not.
        num_keys: Keys of the pack, padding and tail included.
    """

    row: Tensor
    segment: Tensor
    row_in_segment: Tensor
    sequence: Tensor
    half: Tensor
    position: Tensor
    starts: Tensor
    limits: Tensor
    key_lengths: Tensor
    valid: Tensor
    num_local_rows: int
    num_keys: int

    def __len__(self) -> int:
        return int(self.row.numel())

    @property
    def is_sample(self) -> bool:
        """True when some of the rank's rows are not in the table."""
        return len(self) < self.num_local_rows

    def take(self, index: Tensor) -> RowTable:
        """Return the rows of the table at ``index`` ((S,) int64, or (R,) bool)."""
        tensors = {f.name: getattr(self, f.name)[index] for f in fields(self) if f.name in _TENSORS}
        return RowTable(**tensors, num_local_rows=self.num_local_rows, num_keys=self.num_keys)


_TENSORS = frozenset(f.name for f in fields(RowTable)) - {"num_local_rows", "num_keys"}


def rows_of_rank(pack: Pack, cp_rank: int) -> RowTable:
    """Describe every local query row of one rank, in local row order.

    Raises:
        LayoutError: ``cp_rank`` is not a rank of the pack.
    """
    return table_of_segments(
        rank_segments(pack, cp_rank), k_padded=pack.k_padded, num_keys=pack.total_k
    )


def table_of_segments(
    segments: Sequence[Segment], *, k_padded: Sequence[int], num_keys: int
) -> RowTable:
    """Expand segments into a row table.

    Args:
        segments: In local row order, without gaps.
        k_padded: Padded key length of each sequence of the pack.
        num_keys: Keys of the whole pack, tail included.
    """
    lengths = torch.tensor([s.q_length for s in segments], dtype=torch.int64)
    num_rows = int(lengths.sum())
    segment = torch.repeat_interleave(torch.arange(len(segments)), lengths)
    first_rows = _column([s.row_start for s in segments], segment)
    row = torch.arange(num_rows)
    row_in_segment = row - first_rows
    offsets = _column([s.causal_offset for s in segments], segment)
    visible = _column([s.k_length for s in segments], segment)
    key_lengths = [num_keys - s.key_start if s.is_tail else k_padded[s.sequence] for s in segments]
    return RowTable(
        row=row,
        segment=segment,
        row_in_segment=row_in_segment,
        sequence=_column([s.sequence for s in segments], segment),
        half=_column([HALVES.index(s.half) for s in segments], segment),
        position=offsets + row_in_segment,
        starts=_column([s.key_start for s in segments], segment),
        limits=torch.minimum(offsets + row_in_segment + 1, visible),
        key_lengths=_column(key_lengths, segment),
        valid=row_in_segment < _column([s.valid_rows for s in segments], segment),
        num_local_rows=num_rows,
        num_keys=num_keys,
    )


def parts(mask: Tensor, size: int) -> Iterator[Tensor]:
    """Cut the indices at which a mask holds into pieces of ``size``; no piece is empty."""
    index = mask.nonzero().flatten()
    if index.numel():
        yield from index.split(size)


def _column(values: Sequence[int], segment: Tensor) -> Tensor:
    """Give each row the value of its segment."""
    return torch.tensor(values, dtype=torch.int64)[segment]
