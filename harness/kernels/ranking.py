"""The orders in which the kernels rank scores; not IEEE comparison."""

from __future__ import annotations

import torch

MINUS_INF_BUCKET = {torch.float32: 252, torch.float16: 252, torch.bfloat16: 255}
"""Coarse bucket that holds -inf (smaller buckets are better)."""

_BEST_OF_MINUS_INF_BUCKET = {
    torch.float32: -65520.0,
    torch.float16: float("-inf"),
    torch.bfloat16: -(2.0**127),
}
"""Greatest value of the bucket; fp32 becomes the fp16 -inf from -65520 on."""

HIDDEN = torch.iinfo(torch.int64).min
"""Key below every score, for columns a row may not pick."""


def bit_order(scores: torch.Tensor) -> torch.Tensor:
    """Order-preserving integer of the bit pattern: larger is better, +0 above -0.

    Positive NaN is above +inf, negative NaN below -inf: the fused top-k's order, and that of the
    half types in plain top-k.

    Args:
        scores: fp32, fp16 or bf16, any shape.

    Returns:
        int32 of the same shape.
    """
    if scores.dtype == torch.float32:
        bits = scores.contiguous().view(torch.int32)
        return bits ^ ((bits >> 31) & 0x7FFFFFFF)
    half = scores.contiguous().view(torch.int16)
    return (half ^ ((half >> 15) & 0x7FFF)).to(torch.int32)


def top_k_order(scores: torch.Tensor) -> torch.Tensor:
    """Order of plain top-k as integers: larger is better.

    fp32 scores are bucketed by their fp16 conversion first, which sends every NaN to the best
    bucket whatever its sign: a negative NaN ranks below the positive ones and above +inf. For all
    other values the bucket order agrees with the bit order.

    Returns:
        int32, or int64 when a negative NaN needs the room.
    """
    keys = bit_order(scores)
    if scores.dtype != torch.float32:
        return keys
    negative_nan = scores.isnan() & (keys < 0)
    if not bool(negative_nan.any()):
        return keys
    wide = keys.to(torch.int64)
    # +inf stays below and the positive NaNs above: shift the positive NaNs to make room.
    wide += (scores.isnan() & ~negative_nan) * 2**32
    return torch.where(negative_nan, wide + 2**32, wide)


def minus_inf_bucket_key(dtype: torch.dtype) -> int:
    """Return the best key (of ``bit_order``) that still lies in the -inf bucket."""
    value = _BEST_OF_MINUS_INF_BUCKET[dtype]
    return int(bit_order(torch.tensor([value], dtype=dtype))[0])


def coarse_bucket(scores: torch.Tensor) -> torch.Tensor:
    """First-pass bucket 0..255 of plain top-k (smaller is better), int32 of the same shape."""
    if scores.dtype == torch.float32:
        scores = _to_half(scores)
    bits = scores.contiguous().view(torch.int16).to(torch.int32) & 0xFFFF
    keys = torch.where(bits >= 0x8000, bits, (bits ^ 0xFFFF) & 0x7FFF)
    return keys >> 8


def _to_half(scores: torch.Tensor) -> torch.Tensor:
    """Convert to fp16 as the hardware does: NaN becomes the canonical positive one."""
    half = scores.to(torch.float16)
    canonical = torch.tensor(0x7FFF, dtype=torch.int16).view(torch.float16)
    return torch.where(scores.isnan(), canonical, half)


def fine_key(scores: torch.Tensor) -> torch.Tensor:
    """Refinement key of plain top-k (smaller is better), int64 in [0, 2^32) or [0, 2^16)."""
    if scores.dtype == torch.float32:
        return 0x7FFFFFFF - bit_order(scores).to(torch.int64)
    return 0x7FFF - bit_order(scores).to(torch.int64)
