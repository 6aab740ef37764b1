"""Picking the best k columns of each row with the freedom the kernels have.

Slot order is a seeded shuffle, and equal keys at the cut are chosen by chance, unless the caller
asked for a rule. Only rows whose cut falls among equal keys pay for the second look.
"""

from __future__ import annotations

from enum import Enum

import torch

HIDDEN_KEY = torch.iinfo(torch.int32).min
"""Key of a column that the row may not pick; below every score."""


class TieRule(Enum):
    """Which of equal keys at the cut are kept."""

    ANY = 0
    SMALLEST_COLUMN = 1
    LARGEST_COLUMN = 2


def select_columns(
    keys: torch.Tensor, top_k: int, ties: TieRule, generator: torch.Generator
) -> torch.Tensor:
    """Return the columns of the ``top_k`` largest keys per row, in no particular order.

    Args:
        keys: (R, N) int32 or int64, hidden columns holding the least value; N >= top_k.
        top_k: Columns per row.
        ties: What to do among keys equal to the k-th best.
        generator: Source of chance.

    Returns:
        int64 (R, top_k), distinct per row.
    """
    best = torch.topk(keys, top_k, dim=1, sorted=False)
    columns = best.indices
    cut = best.values.amin(dim=1, keepdim=True)
    tied = torch.nonzero(torch.count_nonzero(keys >= cut, dim=1) > top_k).flatten()
    if tied.numel():
        columns[tied] = _break_ties(keys[tied], cut[tied], top_k, ties, generator)
    return columns


def _break_ties(
    keys: torch.Tensor,
    cut: torch.Tensor,
    top_k: int,
    ties: TieRule,
    generator: torch.Generator,
) -> torch.Tensor:
    """Choose among the keys equal to ``cut``; those above it are all kept."""
    width = keys.shape[1]
    if ties is TieRule.ANY:
        # Which of equal keys topk keeps depends on where they stand: shuffle the columns.
        order = torch.randperm(width, generator=generator)
        return order[torch.topk(keys[:, order], top_k, dim=1, sorted=False).indices]
    columns = torch.arange(width, dtype=torch.int32)
    if ties is TieRule.SMALLEST_COLUMN:
        columns = width - 1 - columns
    top = torch.iinfo(torch.int32).max
    priority = torch.where(keys > cut, top, torch.where(keys == cut, columns, -1))
    return torch.topk(priority, top_k, dim=1, sorted=False).indices


def shuffle_slots(picks: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Shuffle the slots of every row: one seeded permutation, rotated by a seeded step per row."""
    rows, slots = picks.shape
    if rows == 0 or slots < 2:
        return picks
    order = torch.randperm(slots, generator=generator)
    turns = torch.randint(0, slots, (rows, 1), generator=generator)
    return picks.gather(1, (order + turns) % slots)
