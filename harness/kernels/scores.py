"""Score arithmetic: sm_scale * sum_h relu(q_h . k) * w_h in fp32, in blocks that stay in cache."""

from __future__ import annotations

import torch

_BLOCK_PRODUCTS = 1024
"""Rows times heads of one product block."""
_BLOCK_KEYS = 1024
_MINUS_INF = float("-inf")


def may_overflow(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Whether q . k may leave the finite fp32 range (inputs not finite, or huge)."""
    if q.numel() == 0 or k.numel() == 0:
        return False
    reach = q.abs().max().double() * k.abs().max().double() * q.shape[-1]
    return not bool(reach < torch.finfo(torch.float32).max)


def fill_scores(
    out: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    w: torch.Tensor,
    limits: torch.Tensor,
    sm_scale: float,
) -> None:
    """Write the scores of visible cells into ``out``, which the caller filled with -inf.

    Args:
        out: (R, N) fp32, any row stride; only columns below a row's limit are written.
        q: (R, H, D) bf16.
        k: (at least max limit, D) bf16.
        w: (R, H) bf16 or fp32.
        limits: Stored columns per row, int64 (R,). A block of rows costs as much as its largest
            limit.
        sm_scale: Factor on the fp32 sum.
    """
    rows, heads, depth = q.shape
    widest = int(limits.max()) if rows else 0
    if widest == 0:
        return
    # The kernels' relu maps NaN to 0 (compare and select); torch's keeps it, so only inputs that
    # can make a NaN product pay for the select.
    careful = may_overflow(q, k)
    keys = k[:widest].float()
    block_rows = max(1, _BLOCK_PRODUCTS // heads)
    for top in range(0, rows, block_rows):
        bottom = min(top + block_rows, rows)
        block_limits = limits[top:bottom]
        products = q[top:bottom].reshape(-1, depth).float()
        weights = w[top:bottom].float().unsqueeze(1)
        lowest, highest = (int(v) for v in torch.aminmax(block_limits))
        for left in range(0, highest, _BLOCK_KEYS):
            right = min(left + _BLOCK_KEYS, highest)
            block = _weighted(products, keys[left:right], weights, careful)
            if sm_scale != 1.0:
                block *= sm_scale
            if right > lowest:
                columns = torch.arange(left, right)
                block.masked_fill_(columns >= block_limits.unsqueeze(1), _MINUS_INF)
            out[top:bottom, left:right] = block


def _weighted(
    products: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor, careful: bool
) -> torch.Tensor:
    """Scores of one block: (rows * H, D), (n, D), (rows, 1, H) to (rows, n)."""
    rows, _, heads = weights.shape
    dots = products @ keys.t()
    dots = torch.where(dots > 0, dots, 0.0) if careful else dots.relu_()
    return torch.bmm(weights, dots.view(rows, heads, -1)).squeeze(1)
