"""Attention probabilities summed over heads, in blocks that stay in cache."""

from __future__ import annotations

import math

import torch

_BLOCK_PRODUCTS = 1024
"""Rows times heads of one product block."""
_BLOCK_KEYS = 1024
_LOG2E = math.log2(math.e)
_LEAST_EXPONENT = -126.0


def fill_probabilities(
    out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    lse: torch.Tensor,
    limits: torch.Tensor,
    scale: float,
    *,
    exponent_floor: bool,
) -> None:
    """Write sum_h exp(scale * q . k - lse_h) of visible cells; the caller filled ``out`` with 0.

    Args:
        out: (R, N) fp32.
        q: (R, H, D) bf16.
        k: (at least max limit, D) bf16.
        lse: (R, H) fp32.
        limits: Visible columns per row, int64 (R,).
        scale: Factor on the products.
        exponent_floor: Clamp base-2 exponents at -126; a NaN counts as that.
    """
    rows, heads, depth = q.shape
    widest = int(limits.max()) if rows else 0
    if widest == 0:
        return
    keys = k[:widest].float()
    step = max(1, _BLOCK_PRODUCTS // heads)
    for top in range(0, rows, step):
        part = slice(top, min(top + step, rows))
        block_limits = limits[part].unsqueeze(1)
        products = q[part].reshape(-1, depth).float()
        offsets = lse[part].float().unsqueeze(2) * -_LOG2E
        for left in range(0, int(block_limits.max()), _BLOCK_KEYS):
            right = min(left + _BLOCK_KEYS, widest)
            exponents = (products @ keys[left:right].t()).view(-1, heads, right - left)
            exponents.mul_(scale * _LOG2E).add_(offsets)
            sums = head_sums(exponents, exponent_floor=exponent_floor)
            hidden = torch.arange(left, right) >= block_limits
            out[part, left:right] = sums.masked_fill_(hidden, 0.0)


def head_sums(exponents: torch.Tensor, *, exponent_floor: bool) -> torch.Tensor:
    """Sum 2^x over the heads: (R, H, K) to (R, K); works in place on its argument."""
    if exponent_floor:
        above = exponents > _LEAST_EXPONENT
        exponents.masked_fill_(~above, _LEAST_EXPONENT)
    return exponents.exp2_().sum(dim=1)
