"""Host shims: what a machine without a GPU needs before Megatron's DSA path runs on CPU ranks.

Each shim is named, and the names active in a run are part of its record. On a machine with a
usable GPU they are refused.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch


class ShimRefusedError(RuntimeError):
    """A host shim was asked for on a machine that has a GPU."""


def _current_device_is_cpu() -> tuple[Any, str, Any]:
    # Megatron allocates gather buffers and rotary tables on the current CUDA device.
    return torch.cuda, "current_device", lambda: "cpu"


def _no_nvtx_range() -> tuple[Any, str, Any]:
    def no_range(*_args: object, **_kwargs: object) -> contextlib.nullcontext[None]:
        return contextlib.nullcontext()

    return torch.cuda.nvtx, "range", no_range


def _tensor_without_pinning() -> tuple[Any, str, Any]:
    # The rotary embedding of unpacked CP builds its rank index in pinned memory.
    original = torch.tensor

    @functools.wraps(original)
    def tensor(*args: Any, **kwargs: Any) -> torch.Tensor:
        kwargs.pop("pin_memory", None)
        return original(*args, **kwargs)

    return torch, "tensor", tensor


def _cuda_stays_on_host() -> tuple[Any, str, Any]:
    def cuda(self: torch.Tensor, *_args: object, **_kwargs: object) -> torch.Tensor:
        return self

    return torch.Tensor, "cuda", cuda


HOST_SHIMS: dict[str, Callable[[], tuple[Any, str, Any]]] = {
    "torch.cuda.current_device": _current_device_is_cpu,
    "torch.cuda.nvtx.range": _no_nvtx_range,
    "torch.tensor(pin_memory)": _tensor_without_pinning,
    "torch.Tensor.cuda": _cuda_stays_on_host,
}
"""Shim name to a function giving owner, attribute and replacement."""


@contextlib.contextmanager
def host_shims() -> Iterator[tuple[str, ...]]:
    """Install every host shim for the duration of a scenario.

    Yields:
        The names of the shims, for the record.

    Raises:
        ShimRefusedError: on a machine with a usable GPU.
    """
    if torch.cuda.is_available():
        raise ShimRefusedError(
            "host shims were asked for on a machine with a usable GPU; run on the GPU, or hide it "
            "with CUDA_VISIBLE_DEVICES= to run modelled kernels on CPU ranks"
        )
    with contextlib.ExitStack() as stack:
        for make in HOST_SHIMS.values():
            owner, name, replacement = make()
            stack.enter_context(_replaced(owner, name, replacement))
        yield tuple(HOST_SHIMS)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)
