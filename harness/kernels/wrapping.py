"""How models read inputs and hand back outputs, whatever tensor type the caller uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


def unwrap(tensor: torch.Tensor) -> torch.Tensor:
    """Return the plain tensor under a subclass, without its autograd graph (same storage)."""
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.detach().as_subclass(torch.Tensor)


def wrap_like(result: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Give ``result`` the tensor type of ``like``; a plain ``like`` leaves it as it is.

    Parameters count as plain: a kernel never returns one.
    """
    if type(like) in (torch.Tensor, torch.nn.Parameter):
        return result
    return result.as_subclass(type(like))


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorHook:
    """The pair a run may replace when its tensors are more than plain subclasses.

    Attributes:
        unwrap: Caller's tensor to a plain CPU tensor with real strides and storage.
        wrap_like: (result, like) to a tensor of the caller's kind.
    """

    unwrap: Callable[[torch.Tensor], torch.Tensor] = unwrap
    wrap_like: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = wrap_like


PLAIN_HOOK = TensorHook()
