"""Caller-owned scratch: what a wrapper asks of it. Models keep their own; refusals count."""

from __future__ import annotations

from typing import Any

import torch

from harness.kernels.context import KernelContext
from harness.kernels.problem import require

_CHUNK = 128
_BASE = 16


def aligned_bytes(count: int) -> int:
    """Round up to the chunk that scratch is dealt in."""
    return -(-count // _CHUNK) * _CHUNK


def check_workspace(
    context: KernelContext, given: Any, required: int, *, bytes_only: bool = False
) -> None:
    """Judge a caller's workspace; without one the wrapper allocates its own.

    Args:
        context: Tensor types of the caller.
        given: Tensor or None.
        required: Bytes the call needs.
        bytes_only: Refuse dtypes other than uint8, instead of viewing them as bytes.

    Raises:
        TypeError: Not a tensor.
        ValueError: Dtype, layout, size or alignment.
    """
    if given is None or required == 0:
        return
    require(isinstance(given, torch.Tensor), TypeError, f"workspace is {type(given).__name__}")
    tensor = context.hook.unwrap(given)
    require(
        not bytes_only or tensor.dtype == torch.uint8,
        ValueError,
        f"workspace is {tensor.dtype}; expected uint8",
    )
    size = tensor.numel() * tensor.element_size()
    start = tensor.storage_offset() * tensor.element_size()
    require(
        tensor.is_contiguous() and size >= required and start % _BASE == 0,
        ValueError,
        f"workspace holds {size} bytes from byte {start} on; expected at least {required} "
        f"contiguous ones from a multiple of {_BASE} on",
    )
