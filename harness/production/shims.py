"""Host shims: what a machine without a GPU needs before Megatron's DSA path runs on CPU ranks.

Each shim is named, and the names active in a run are part of its record. On a machine with a
usable GPU they are refused.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
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


def _no_device_random_state() -> tuple[Any, str, Any]:
    # Recomputation takes the state of the device's generator with that of the host.
    def get_rng_state(device: Any = "cuda") -> torch.Tensor:
        return torch.empty(0, dtype=torch.uint8)

    return torch.cuda.random, "get_rng_state", get_rng_state


def _device_random_state_kept() -> tuple[Any, str, Any]:
    # It would queue the call for when CUDA is set up, which never happens here, and keep it.
    random: Any = importlib.import_module("megatron.core.tensor_parallel.random")

    def set_state(*_args: object, **_kwargs: object) -> None:
        return None

    return random, "_set_cuda_rng_state", set_state


def _barrier_without_devices() -> tuple[Any, str, Any]:
    # Groups of Dynamic CP are created with a barrier on the current CUDA device.
    original = torch.distributed.barrier

    @functools.wraps(original)
    def barrier(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_ids", None)
        return original(*args, **kwargs)

    return torch.distributed, "barrier", barrier


def _nothing_to_synchronize() -> tuple[Any, str, Any]:
    def synchronize(device: Any = None) -> None:
        return None

    return torch.cuda, "synchronize", synchronize


Shims = Mapping[str, Callable[[], tuple[Any, str, Any]]]
"""Shim name to a function giving owner, attribute and replacement."""

HOST_SHIMS: Shims = {
    "torch.cuda.current_device": _current_device_is_cpu,
    "torch.cuda.nvtx.range": _no_nvtx_range,
    "torch.tensor(pin_memory)": _tensor_without_pinning,
    "torch.Tensor.cuda": _cuda_stays_on_host,
}
"""Shims of every scenario."""

RECOMPUTE_SHIMS: Shims = {
    "torch.cuda.random.get_rng_state": _no_device_random_state,
    "tensor_parallel.random._set_cuda_rng_state": _device_random_state_kept,
}
"""Further shims where backward computes again."""

DYNAMIC_CP_SHIMS: Shims = {
    "torch.distributed.barrier(device_ids)": _barrier_without_devices,
    "torch.cuda.synchronize": _nothing_to_synchronize,
}
"""Further shims where the build creates groups of Dynamic CP."""


@contextlib.contextmanager
def host_shims(*further: Shims) -> Iterator[tuple[str, ...]]:
    """Install every host shim for the duration of a scenario.

    Args:
        further: Tables of shims that the scenario needs besides ``HOST_SHIMS``.

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
        names: list[str] = []
        for table in (HOST_SHIMS, *further):
            names += table
            for make in table.values():
                owner, name, replacement = make()
                stack.enter_context(_replaced(owner, name, replacement))
        yield tuple(names)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)
