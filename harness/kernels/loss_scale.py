"""The outer gradient of the loss, and the factor that indexer backward builds on it."""

from __future__ import annotations

from typing import Any

import torch

from harness.kernels.context import KernelContext
from harness.kernels.problem import require


def outer_gradient(
    context: KernelContext, given: Any, *, must_be_tensor: bool, device: torch.device
) -> float:
    """Read ``grad_loss``.

    Args:
        context: Tensor types of the caller.
        given: Number or tensor.
        must_be_tensor: The release takes a one-element fp32 tensor only.
        device: Of the queries.

    Raises:
        TypeError: A number where a tensor is required.
        ValueError: A tensor of another dtype, device or size where one is required.
        RuntimeError: A tensor of several elements, in releases that reshape it.
    """
    if not isinstance(given, torch.Tensor):
        require(not must_be_tensor, TypeError, f"grad_loss is {given!r}; expected a torch.Tensor")
        return float(torch.tensor(float(given), dtype=torch.float32))
    tensor = context.hook.unwrap(given)
    if must_be_tensor:
        good = tensor.numel() == 1 and tensor.dtype == torch.float32 and tensor.device == device
        require(
            good,
            ValueError,
            f"grad_loss is {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; expected one "
            f"fp32 element on {device}",
        )
    require(
        tensor.numel() == 1,
        RuntimeError,
        f"grad_loss has shape {tuple(tensor.shape)}; expected one element",
    )
    return float(tensor.to(torch.float32).reshape(()))


def fp32_product(*factors: float) -> float:
    """Multiply as the kernels do: every factor and every product in fp32."""
    product = torch.tensor(1.0)
    for factor in factors:
        product = product * torch.tensor(factor, dtype=torch.float32)
    return float(product)
