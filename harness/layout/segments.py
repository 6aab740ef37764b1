"""Segments: runs of a rank's query rows that share one causal rule.

A rank has at most two segments for each sequence (front and back half) and one for the tail, so
everything here costs O(sequences), never O(tokens).
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.layout.errors import check_cp_rank
from harness.layout.pack import Pack
from harness.layout.zigzag import Half, zigzag_halves

TAIL = -1
"""``Segment.sequence`` of the rows behind the last sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A run of local query rows; row r of it sees keys ``[0, causal_offset + r]`` of its sequence.

    That range is cut at the sequence's padded key length, so row r's limit (number of visible
    keys) is ``min(causal_offset + r + 1, k_length)``. Tail rows see nothing.

    Attributes:
        sequence: Index in the pack, ``TAIL`` (-1) for tail padding.
        half: Front or back half; whole at ``cp_size`` 1 and for the tail.
        row_start: First local row.
        q_length: Rows, at least 1.
        q_start: Packed position of the first row (padded order, over all sequences).
        key_start: Packed position of the sequence's first key; for the tail, of the first tail
            key.
        k_length: Keys visible to the last row, a prefix of the sequence's keys:
            ``min(causal_offset + q_length, padded key length)``; 0 for the tail.
        causal_offset: Position of the first row inside its own sequence; this is what a kernel
            with top-left masking must be given as ``q_causal_offsets``. 0 for the tail.
        valid_rows: Rows that are real tokens; always a prefix of the segment.
    """

    sequence: int
    half: Half
    row_start: int
    q_length: int
    q_start: int
    key_start: int
    k_length: int
    causal_offset: int
    valid_rows: int

    @property
    def is_tail(self) -> bool:
        """True for rows that no sequence owns."""
        return self.sequence == TAIL

    @property
    def row_stop(self) -> int:
        """Local row behind the last one."""
        return self.row_start + self.q_length

    @property
    def padding_rows(self) -> int:
        """Rows that are padding; always a suffix of the segment."""
        return self.q_length - self.valid_rows

    def limit(self, row: int) -> int:
        """Return the number of keys that row ``row`` of this segment may see."""
        return min(self.causal_offset + row + 1, self.k_length)


def rank_segments(pack: Pack, cp_rank: int) -> tuple[Segment, ...]:
    """Return a rank's segments in local row order: front, back for each sequence, tail last.

    Segments without rows are left out, so an empty sequence leaves no trace but its index.

    For ``cu_seqlens`` [0, 4, 8] at CP 2, rank 0 holds packed positions 0, 3, 4, 7:

    >>> from harness.layout import pack_sequences
    >>> [(s.q_start, s.causal_offset) for s in rank_segments(pack_sequences([4, 4], cp_size=2), 0)]
    [(0, 0), (3, 3), (4, 0), (7, 3)]

    Raises:
        LayoutError: ``cp_rank`` is not a rank of the pack.
    """
    check_cp_rank(cp_rank, pack.cp_size)
    cp_size = pack.cp_size
    segments: list[Segment] = []
    row = q_begin = k_begin = 0
    lengths = zip(pack.q_lengths, pack.q_padded, pack.k_padded, strict=True)
    for sequence, (q_real, q_padded, k_padded) in enumerate(lengths):
        if q_padded:
            for half, offset, rows in zigzag_halves(q_padded, cp_size, cp_rank):
                segments.append(
                    Segment(
                        sequence=sequence,
                        half=half,
                        row_start=row,
                        q_length=rows,
                        q_start=q_begin + offset,
                        key_start=k_begin,
                        k_length=min(offset + rows, k_padded),
                        causal_offset=offset,
                        valid_rows=min(max(q_real - offset, 0), rows),
                    )
                )
                row += rows
        q_begin += q_padded
        k_begin += k_padded
    tail_rows = pack.tail_padding // cp_size
    if tail_rows:
        segments.append(_tail_segment(row, tail_rows, q_begin + cp_rank * tail_rows, k_begin))
    return tuple(segments)


def _tail_segment(row_start: int, rows: int, q_start: int, key_start: int) -> Segment:
    return Segment(
        sequence=TAIL,
        half=Half.WHOLE,
        row_start=row_start,
        q_length=rows,
        q_start=q_start,
        key_start=key_start,
        k_length=0,
        causal_offset=0,
        valid_rows=0,
    )


def valid_rows(pack: Pack) -> tuple[int, ...]:
    """Return the number of real query rows of each rank, in rank order.

    >>> from harness.layout import pack_sequences
    >>> valid_rows(pack_sequences([698], cp_size=4))
    (170, 176, 176, 176)
    """
    return tuple(pack.rows_per_rank - rows for rows in padding_rows(pack))


def padding_rows(pack: Pack) -> tuple[int, ...]:
    """Return the number of padding rows (in sequences and tail) of each rank, in rank order.

    Padding stands at its sequence's end, so it fills zigzag chunks from the last one backwards;
    the last chunk is rank 0's back half.

    >>> from harness.layout import pack_sequences
    >>> padding_rows(pack_sequences([698], cp_size=4))
    (6, 0, 0, 0)
    """
    cp_size = pack.cp_size
    padding = [pack.tail_padding // cp_size] * cp_size
    num_chunks = 1 if cp_size == 1 else 2 * cp_size
    for real, padded in zip(pack.q_lengths, pack.q_padded, strict=True):
        missing = padded - real
        chunk = num_chunks
        while missing:
            chunk -= 1
            rows = min(missing, padded // num_chunks)
            padding[min(chunk, num_chunks - 1 - chunk)] += rows
            missing -= rows
    return tuple(padding)
