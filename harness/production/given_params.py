"""``PackedSeqParams`` that stay in place, so that a graph replay can be given another pack."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch

_GIVEN: ContextVar[Any] = ContextVar("packed_seq_params", default=None)


def given_params() -> Any:
    """Parameters to use instead of new ones, None outside ``params_given``."""
    return _GIVEN.get()


@contextlib.contextmanager
def params_given(params: Any) -> Iterator[None]:
    """Have every forward use these parameters."""
    token = _GIVEN.set(params)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def copy_params(into: Any, source: Any) -> None:
    """Give ``into`` the tensors of ``source``, in place.

    Raises:
        ValueError: where anything but the values of tensors differs: a graph has it built in.
    """
    for name, value in vars(source).items():
        held = getattr(into, name)
        if isinstance(value, torch.Tensor) and isinstance(held, torch.Tensor):
            if held.shape != value.shape:
                raise ValueError(f"{name}: expected shape {held.shape}, found {value.shape}")
            held.copy_(value)
        elif name.startswith("max_") and held != value:
            raise ValueError(
                f"{name}: a graph has {held} built in, the other pack has {value}; choose packs "
                "of equal longest sequences"
            )
