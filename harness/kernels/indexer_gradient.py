"""Second stage of indexer backward: gradient signal to gradients of queries, weights and keys.

With s = sm_scale * q . k and dS = rounded(signal * w * [s > 0]):

    dW = sum signal * relu(s),   dQ = sm_scale * sum dS * k,   dK = sm_scale * sum dS * q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexerGradients:
    """Gradients of some rows, fp32.

    Attributes:
        queries: (R, H, D).
        weights: (R, H).
        keys: (R, K, D) per slot, or (N, D) over shared keys.
    """

    queries: torch.Tensor
    weights: torch.Tensor
    keys: torch.Tensor


def round_signal(values: torch.Tensor, *, two_terms: bool) -> torch.Tensor:
    """Return ``values`` as the matrix unit sees them: one bf16, or the sum of two."""
    high = values.to(torch.bfloat16).float()
    if not two_terms:
        return high
    return high + (values - high).to(torch.bfloat16).float()


def slot_gradients(
    q: torch.Tensor,
    keys: torch.Tensor,
    w: torch.Tensor,
    signal: torch.Tensor,
    sm_scale: float,
    *,
    two_terms: bool = False,
) -> IndexerGradients:
    """Gradients over keys gathered per row.

    Args:
        q: fp32 (R, H, D).
        keys: fp32 (R, K, D), zeros in rejected slots: their score is 0, so dS is 0.
        w: fp32 (R, H).
        signal: fp32 (R, K).
        sm_scale: Factor on the score.
        two_terms: dS as a sum of two bf16 (backend ``sm100_v2``).
    """
    scores = torch.bmm(q, keys.transpose(1, 2)).mul_(sm_scale)
    gradient, weights = _through_relu(scores, w, signal, two_terms)
    return IndexerGradients(
        queries=torch.bmm(gradient, keys).mul_(sm_scale),
        weights=weights,
        keys=torch.bmm(gradient.transpose(1, 2), q).mul_(sm_scale),
    )


def shared_key_gradients(
    q: torch.Tensor, keys: torch.Tensor, w: torch.Tensor, signal: torch.Tensor, sm_scale: float
) -> IndexerGradients:
    """Gradients over keys that all rows share.

    Args:
        q: fp32 (R, H, D).
        keys: fp32 (N, D).
        w: fp32 (R, H).
        signal: fp32 (R, N), zero in hidden cells.
        sm_scale: Factor on the score.
    """
    rows, heads, depth = q.shape
    flat = q.reshape(rows * heads, depth)
    scores = (flat @ keys.t()).mul_(sm_scale).view(rows, heads, -1)
    gradient, weights = _through_relu(scores, w, signal, two_terms=False)
    flat_gradient = gradient.view(rows * heads, -1)
    return IndexerGradients(
        queries=(flat_gradient @ keys).mul_(sm_scale).view(rows, heads, depth),
        weights=weights,
        keys=(flat_gradient.t() @ flat).mul_(sm_scale),
    )


def _through_relu(
    scores: torch.Tensor, w: torch.Tensor, signal: torch.Tensor, two_terms: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dS (R, H, K), rounded, and dW (R, H); the kernels' relu maps NaN to 0."""
    closed = ~(scores > 0)
    weights = torch.bmm(scores.masked_fill_(closed, 0.0), signal.unsqueeze(2)).squeeze(2)
    gradient = (w.unsqueeze(2) * signal.unsqueeze(1)).masked_fill_(closed, 0.0)
    return round_signal(gradient, two_terms=two_terms), weights
