"""The reference set of a chunk of rows: the k best keys, and what counts as level with the last.

The cut is the score of a row's k-th best visible key. A key is *clearly above* it by more than the
margin, *level* with it within the margin, or clearly below. Every selection that is right holds all
keys clearly above, fills up with level ones, and may choose freely among those.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.reference.operands import ScoredRows

_CROSSING_ROWS = 32
"""Rows with ties across the cut that are resolved at a time (they need full-width temporaries)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Reference sets of r rows that see more than k keys each.

    Attributes:
        keys: (r, k) int64, the k best keys of each row relative to its sequence's first key,
            ascending; of exactly equal scores at the cut, the lower keys.
        scores: (r, k) their scores.
        threshold: (r, 1) score of the k-th best key.
        norm: (r, 1) greatest norm of the keys whose score equals ``threshold``.
        above: (r, k) bool, keys clearly above the cut.
    """

    keys: Tensor
    scores: Tensor
    threshold: Tensor
    norm: Tensor
    above: Tensor


def margins(chunk: ScoredRows, keys: Tensor, cut_norm: Tensor, unit: float) -> Tensor:
    """Return the margin of (row, key): ``unit * sum_h |w_h| ||q_h|| * max(||k||, ||k_cut||)``.

    Both sides of a comparison are rounded, so the longer of the key and the key at the cut counts.

    Args:
        chunk: The rows.
        keys: (r, c) int64, relative to the sequence's first key.
        cut_norm: (r, 1).
        unit: ``Operands.margin_unit``.
    """
    return unit * chunk.weights * torch.maximum(chunk.norms[keys], cut_norm)


def cut_rows(chunk: ScoredRows, scores: Tensor, topk: int, unit: float) -> Cut:
    """Find the reference set of every row.

    Args:
        chunk: The rows.
        scores: (r, n) their scores, or a further masked version of them, with at least ``topk``
            finite scores in each row.
        topk: Keys due per row.
        unit: ``Operands.margin_unit``.

    Raises:
        ValueError: when a score overflowed the reference dtype.
    """
    values, keys = torch.topk(scores, topk, dim=1, sorted=True)
    if not torch.isfinite(values).all():
        raise ValueError(
            "a reference score is not finite although its inputs are; use `reference: {dtype: "
            "fp64}` or smaller inputs"
        )
    threshold = values[:, -1:].clone()
    norm = torch.where(values == threshold, chunk.norms[keys], 0).amax(1, keepdim=True)
    keys = keys.sort(dim=1).values
    crossing = ((scores >= threshold).sum(1) > topk).nonzero().flatten()
    for part in crossing.split(_CROSSING_ROWS) if crossing.numel() else ():
        keys[part], norm[part] = _resolve_ties(scores[part], threshold[part], chunk.norms, topk)
    values = scores.gather(1, keys)
    above = values - margins(chunk, keys, norm, unit) > threshold
    return Cut(keys=keys, scores=values, threshold=threshold, norm=norm, above=above)


def _resolve_ties(
    scores: Tensor, threshold: Tensor, norms: Tensor, topk: int
) -> tuple[Tensor, Tensor]:
    """Choose the lower keys among those that tie exactly across the cut.

    Returns:
        (r, topk) keys ascending, and (r, 1) the greatest norm among all tied keys.
    """
    better = scores > threshold
    tied = scores == threshold
    room = topk - better.sum(1, keepdim=True)
    chosen = better | (tied & (tied.cumsum(1, dtype=torch.int32) <= room))
    keys = chosen.nonzero()[:, 1].view(scores.shape[0], topk)
    return keys, torch.where(tied, norms, 0).amax(1, keepdim=True)
