"""Statistics of a score matrix, in a few small operations on its own stream."""

from __future__ import annotations

import torch

from .settings import ALL, AUTO, OFF

FP16_MIN = -65504.0
"""Below it a cast to fp16, which radix top-k kernels bin by, is minus infinity."""
NAMES = ("min", "max", "cells", "masked", "below_fp16", "nan", "pos_inf")
"""Order of the values; ``min`` and ``max`` are over finite scores, ``masked`` counts -inf."""

_AUTO_CELLS = 2**18


def sampled_rows(rows: int, keys: int, setting: str | int) -> int:
    """Return how many of a matrix's rows are looked at; 0 means none."""
    if setting == OFF or rows == 0 or keys == 0:
        return 0
    if setting == ALL:
        return rows
    if setting == AUTO:
        return min(rows, max(1, _AUTO_CELLS // keys))
    return min(rows, int(setting))


def sample(scores: torch.Tensor, count: int, turn: int) -> torch.Tensor:
    """Return evenly spread rows of ``[rows, keys]`` as a view; ``turn`` moves them by one row."""
    step = max(1, scores.shape[0] // count)
    return scores[turn % step :: step][:count]


def statistics(scores: torch.Tensor) -> torch.Tensor:
    """Return ``[7]`` fp64 of ``NAMES`` for ``[rows, keys]`` scores, on their device.

    Nothing is read by the host.
    """
    finite = torch.isfinite(scores)
    least = torch.where(finite, scores, torch.inf).amin()
    most = torch.where(finite, scores, -torch.inf).amax()
    counts = [
        torch.isneginf(scores).sum(),
        (finite & (scores < FP16_MIN)).sum(),
        torch.isnan(scores).sum(),
        torch.isposinf(scores).sum(),
    ]
    cells = torch.full_like(least, float(scores.numel()))
    return torch.stack([value.to(torch.float64) for value in (least, most, cells, *counts)])
