"""Zigzag split of one sequence over context-parallel ranks.

A padded sequence is cut into ``2 * cp_size`` equal chunks; rank r holds chunk r (its front half)
and chunk ``2 * cp_size - 1 - r`` (its back half), so that causal work is balanced. Source of the
rule: ``build_zigzag_cp_local_positions`` and ``build_packed_allgather_cp_local_positions`` in
megatron-core's ``dsa_layout.py``.
"""

from __future__ import annotations

import enum

from harness.layout.errors import LayoutError, LayoutRule, check_cp_rank, check_cp_size


class Half(enum.StrEnum):
    """Which part of its sequence a rank's run of rows is."""

    FRONT = "front"
    """Chunk ``cp_rank``, counted from the sequence's start."""
    BACK = "back"
    """Chunk ``2 * cp_size - 1 - cp_rank``; for rank 0 the last one, which holds the padding."""
    WHOLE = "whole"
    """The sequence is not split (``cp_size`` 1), or the rows belong to no sequence (tail)."""


def pad_multiple(cp_size: int) -> int:
    """Return what padded lengths are a multiple of: ``2 * cp_size``, or 1 without CP.

    At ``cp_size`` 1 nothing is cut in halves and Megatron's data pipeline pads nothing
    (``megatron/training/datasets/sft_dataset.py`` pads only for ``context_parallel_size > 1``).
    """
    check_cp_size(cp_size)
    return 1 if cp_size == 1 else 2 * cp_size


def padded_length(length: int, cp_size: int) -> int:
    """Round a real length up to what ``cp_size`` needs.

    >>> padded_length(698, 4), padded_length(5, 1), padded_length(0, 4)
    (704, 5, 0)
    """
    multiple = pad_multiple(cp_size)
    return -(-length // multiple) * multiple


def zigzag_halves(padded: int, cp_size: int, cp_rank: int) -> tuple[tuple[Half, int, int], ...]:
    """Return a rank's halves of one padded sequence as (half, offset in the sequence, rows).

    >>> [(half.value, offset, rows) for half, offset, rows in zigzag_halves(4, 2, 0)]
    [('front', 0, 1), ('back', 3, 1)]

    The caller guarantees divisibility and the rank's range (``Pack`` checks both).
    """
    if cp_size == 1:
        return ((Half.WHOLE, 0, padded),)
    chunk = padded // (2 * cp_size)
    return (
        (Half.FRONT, cp_rank * chunk, chunk),
        (Half.BACK, padded - (cp_rank + 1) * chunk, chunk),
    )


def zigzag_runs(seq_length: int, *, cp_size: int, cp_rank: int) -> tuple[tuple[int, int], ...]:
    """Return a rank's positions of one non-packed (``sbhd``) sequence as (start, rows) runs.

    Such sequences are not padded per rank: the global length itself must fit.

    >>> zigzag_runs(16, cp_size=4, cp_rank=1)
    ((2, 2), (12, 2))

    Raises:
        LayoutError: ``cp_rank`` out of range, or ``seq_length`` negative or no multiple of
            ``2 * cp_size``.
    """
    check_cp_rank(cp_rank, cp_size)
    check_sbhd_length(seq_length, cp_size)
    return tuple(
        (offset, rows) for _, offset, rows in zigzag_halves(seq_length, cp_size, cp_rank) if rows
    )


def check_sbhd_length(seq_length: int, cp_size: int) -> None:
    """Raise LayoutError unless a non-packed sequence of this length can be split."""
    if seq_length < 0:
        raise LayoutError(
            f"seq_length {seq_length} is negative; expected 0 or more",
            rule=LayoutRule.NEGATIVE_LENGTH,
            sequence=0,
        )
    due = padded_length(seq_length, cp_size)
    if seq_length != due:
        raise LayoutError(
            f"seq_length {seq_length} is not a multiple of 2 * cp_size = {2 * cp_size}; "
            f"use {due}, or a smaller cp_size (sbhd sequences are not padded per rank)",
            rule=LayoutRule.PADDED_NOT_DIVISIBLE,
            sequence=0,
        )
