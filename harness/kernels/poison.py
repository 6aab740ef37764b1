"""Values put into fresh outputs, so that reading what a kernel never wrote is noticed."""

from __future__ import annotations

import torch

INDEX_POISON = -0x5A5A5A5A
"""Id no caller can mistake for a key or for the -1 padding."""

_FLOAT_BITS = {
    torch.float32: (torch.int32, 0x7FA5A5A5),
    torch.float16: (torch.int16, 0x7DA5),
    torch.bfloat16: (torch.int16, 0x7FA5),
}
"""Signalling NaN patterns (quiet bit clear, payload set) per dtype."""


def poisoned(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a fresh contiguous tensor that holds the poison of its dtype."""
    out = torch.empty(shape, dtype=dtype)
    if dtype in _FLOAT_BITS:
        carrier, bits = _FLOAT_BITS[dtype]
        out.view(carrier).fill_(bits)
    else:
        out.fill_(INDEX_POISON)
    return out


def is_poison(tensor: torch.Tensor) -> torch.Tensor:
    """Mark the elements of ``tensor`` that still hold the poison (bool, same shape)."""
    if tensor.dtype in _FLOAT_BITS:
        carrier, bits = _FLOAT_BITS[tensor.dtype]
        return tensor.contiguous().view(carrier) == bits
    return tensor == INDEX_POISON
