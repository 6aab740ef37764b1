"""Where tensors that describe a layout to Megatron are put."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch

_DEVICE: ContextVar[torch.device | None] = ContextVar("metadata_device", default=None)


def metadata_device() -> torch.device:
    """Device of ``cu_seqlens`` and the like: the host's, unless it was set otherwise."""
    return _DEVICE.get() or torch.device("cpu")


@contextlib.contextmanager
def metadata_on(device: torch.device) -> Iterator[None]:
    """Put them elsewhere for a while: on a GPU, or on a look-alike of one."""
    token = _DEVICE.set(device)
    try:
        yield
    finally:
        _DEVICE.reset(token)
