"""First stage of indexer backward: probabilities to the gradient signal of the scores.

The loss is KL(target || predict) with both logarithms clipped at -100, so with c = exp(-100)

    g = -max(target, c) * [log predict >= -100] * scale,   signal = g - predict * sum(g).
"""

from __future__ import annotations

import math

import torch

LOG_CLIP = -100.0
PROBABILITY_CLIP = math.exp(LOG_CLIP)
"""A denormal in fp32. Whether devices flush it is unknown; the model keeps it."""
NORM_EPSILON = 1e-10
_LEAST_NORMAL = torch.finfo(torch.float32).tiny
_MASKED_SCORE = -1e9


def clipped_signal(
    target: torch.Tensor, predict: torch.Tensor, passes: torch.Tensor, scale: torch.Tensor | float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the signal, and the row sums it was built with.

    Args:
        target: fp32 (..., K).
        predict: fp32 (..., K).
        passes: bool (..., K), entries whose logarithm is not clipped.
        scale: Loss coefficient times outer gradient over the rows.

    Returns:
        fp32 (..., K) and (..., 1).
    """
    floor = torch.tensor(PROBABILITY_CLIP, dtype=torch.float32)
    gradient = torch.fmax(target, floor).neg_().mul_(passes).mul_(scale)
    total = gradient.sum(dim=-1, keepdim=True)
    return gradient.sub_(predict * total), total


def probability_signal(
    target: torch.Tensor, predict: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Signal of given probabilities: the gate looks at ``predict`` itself."""
    return clipped_signal(target, predict, predict >= PROBABILITY_CLIP, scale)


def raw_score_signal(
    attention: torch.Tensor,
    norm: torch.Tensor,
    scores: torch.Tensor,
    lse: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    *,
    gate_flushes: bool,
) -> torch.Tensor:
    """Signal of raw dense scores and their denominators; zero in hidden cells.

    Args:
        attention: fp32 (R, N), head sums of attention probabilities.
        norm: fp32 (R,), their row sums.
        scores: fp32 (R, N), indexer scores.
        lse: fp32 (R,), their row logsumexp.
        visible: bool (R, N).
        scale: As for ``clipped_signal``.
        gate_flushes: Gate on the probability, after denormals were flushed (``d297``).
    """
    logarithm = scores - lse.unsqueeze(-1)
    predict = logarithm.exp()
    predict.masked_fill_(predict < _LEAST_NORMAL, 0.0)
    target = attention / (norm.unsqueeze(-1) + NORM_EPSILON)
    passes = predict >= PROBABILITY_CLIP if gate_flushes else logarithm >= LOG_CLIP
    # Hidden cells are skipped by the kernels, whatever they hold.
    predict.masked_fill_(~visible, 0.0)
    floor = torch.tensor(PROBABILITY_CLIP, dtype=torch.float32)
    gradient = torch.fmax(target, floor).neg_().mul_(passes).mul_(scale)
    gradient.masked_fill_(~visible, 0.0)
    total = gradient.sum(dim=-1, keepdim=True)
    return gradient.sub_(predict * total)


def torch_signal(
    attention: torch.Tensor, scores: torch.Tensor, visible: torch.Tensor, scale: float
) -> torch.Tensor:
    """Signal that recomputes softmax and norm over the visible cells (first SM90 releases)."""
    predict = torch.softmax(scores.masked_fill(~visible, _MASKED_SCORE), dim=-1)
    shown = attention.masked_fill(~visible, 0.0)
    target = shown / shown.sum(dim=-1, keepdim=True).clamp(min=NORM_EPSILON)
    passes = (predict >= PROBABILITY_CLIP) & visible
    signal, _ = clipped_signal(target, predict, passes, scale)
    return signal.masked_fill_(~visible, 0.0)
