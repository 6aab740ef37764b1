"""Positions as runs, gathered order and its inverse.

A run is ``(start, length)`` of consecutive packed positions. Packed order is padded order over all
sequences, then the tail; the tail rows of rank r follow those of rank r - 1. Gathered order is what
an all-gather over the CP group yields: all local rows of rank 0, then of rank 1, and so on.
"""

from __future__ import annotations

from array import array

from harness.layout.errors import check_cp_rank
from harness.layout.pack import Pack, Stream
from harness.layout.zigzag import zigzag_halves

Run = tuple[int, int]


def local_runs(pack: Pack, cp_rank: int) -> tuple[Run, ...]:
    """Return a rank's query rows in local order as runs of packed positions.

    One run for each segment of ``rank_segments``; neighbouring runs are not merged. For
    ``cu_seqlens`` [0, 4, 8] at CP 2, rank 0 holds positions 0, 3, 4, 7:

    >>> from harness.layout import pack_sequences
    >>> local_runs(pack_sequences([4, 4], cp_size=2), 0)
    ((0, 1), (3, 1), (4, 1), (7, 1))

    Raises:
        LayoutError: ``cp_rank`` is not a rank of the pack.
    """
    return _stream_runs(pack, cp_rank, "query")


def key_runs(pack: Pack, cp_rank: int) -> tuple[Run, ...]:
    """Return a rank's key rows before the gather, as runs of packed key positions.

    Raises:
        LayoutError: ``cp_rank`` is not a rank of the pack.
    """
    return _stream_runs(pack, cp_rank, "key")


def megatron_position_runs(
    pack: Pack, cp_rank: int, *, stream: Stream = "query"
) -> tuple[Run, ...]:
    """Return the same rows under the numbers that Megatron gives them.

    They differ from packed positions in the tail only: ``dsa_layout.py`` starts the tail of rank r
    at ``cu_seqlens[-1] + r * output_size``, where ``output_size`` is the rank's local row count,
    not its tail rows. The numbers are ordered alike but leave gaps, so they serve for sorting and
    not for addressing. (A pack whose sequences are all empty is outside this: Megatron returns no
    position at all for it when ``cp_size > 1``, tail or not.)

    Raises:
        LayoutError: ``cp_rank`` is not a rank of the pack.
    """
    runs = _stream_runs(pack, cp_rank, stream)
    if not pack.tail(stream):
        return runs
    output_size = pack.total(stream) // pack.cp_size
    return (*runs[:-1], (sum(pack.padded(stream)) + cp_rank * output_size, runs[-1][1]))


def gather_runs(pack: Pack, *, stream: Stream = "key") -> tuple[Run, ...]:
    """Return the gathered order as runs of packed positions (keys are what production gathers).

    >>> from harness.layout import pack_sequences
    >>> gather_runs(pack_sequences([4], cp_size=2))
    ((0, 1), (3, 1), (1, 1), (2, 1))
    """
    return tuple(
        run for cp_rank in range(pack.cp_size) for run in _stream_runs(pack, cp_rank, stream)
    )


def inverse_permutation(pack: Pack, *, stream: Stream = "key") -> array[int]:
    """Return, for each packed position, its index in the gathered order (int64).

    ``gathered.index_select(0, inverse)`` restores packed order; this is Megatron's key reorder
    index. Written run by run, without a sort.

    >>> from harness.layout import pack_sequences
    >>> list(inverse_permutation(pack_sequences([4], cp_size=2)))
    [0, 2, 3, 1]
    """
    total = pack.total(stream)
    inverse = array("q", bytes(8 * total))
    order = array("q", range(total))
    gathered = 0
    for start, length in gather_runs(pack, stream=stream):
        inverse[start : start + length] = order[gathered : gathered + length]
        gathered += length
    assert gathered == total, f"runs cover {gathered} of {total} positions"
    return inverse


def _stream_runs(pack: Pack, cp_rank: int, stream: Stream) -> tuple[Run, ...]:
    check_cp_rank(cp_rank, pack.cp_size)
    runs: list[Run] = []
    begin = 0
    for padded in pack.padded(stream):
        if padded:
            halves = zigzag_halves(padded, pack.cp_size, cp_rank)
            runs.extend((begin + offset, rows) for _, offset, rows in halves)
            begin += padded
    tail_rows = pack.tail(stream) // pack.cp_size
    if tail_rows:
        runs.append((begin + cp_rank * tail_rows, tail_rows))
    return tuple(runs)
