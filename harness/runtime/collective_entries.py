"""The entry points of torch.distributed that are journaled, and where their arguments stand.

Megatron-LM calls them as attributes of ``torch.distributed``, or through names that its modules
bound when they were imported (``dist_all_gather_func`` in ``tensor_parallel/mappings.py``), some
of them deprecated aliases. ``batch_isend_irecv`` is not in the table: it calls ``isend`` and
``irecv``, which are.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One entry point.

    Attributes:
        name: Attribute of its module.
        operation: Name under which it is journaled.
        inputs: Parameters with the tensors the rank gives.
        outputs: Parameters with the tensors it receives.
        root: Parameters with a root or peer: global rank, then rank inside the group.
        pairwise: True for point-to-point calls.
        asynchronous: True when it always returns before completion.
        functional: True for the functional collectives, whose groups come in more forms.
    """

    name: str
    operation: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    root: tuple[str, str] | None = None
    pairwise: bool = False
    asynchronous: bool = False
    functional: bool = False


_SRC = ("src", "group_src")
_DST = ("dst", "group_dst")


def _plain(name: str, inputs: str, outputs: str = "", **more: Any) -> Entry:
    operation = more.pop("operation", name)
    return Entry(
        name=name,
        operation=operation,
        inputs=tuple(inputs.split()),
        outputs=tuple(outputs.split()),
        **more,
    )


def _aliases(operation: str, names: Iterable[str], inputs: str, outputs: str) -> list[Entry]:
    return [_plain(name, inputs, outputs, operation=operation) for name in names]


ENTRIES: tuple[Entry, ...] = (
    _plain("all_reduce", "tensor"),
    _plain("all_reduce_coalesced", "tensors"),
    _plain("broadcast", "tensor", root=_SRC),
    _plain("reduce", "tensor", root=_DST),
    _plain("all_gather", "tensor", "tensor_list"),
    _plain("all_gather_coalesced", "input_tensor_list"),
    *_aliases(
        "all_gather_into_tensor",
        ("all_gather_into_tensor", "all_gather_single", "_all_gather_base"),
        "input_tensor",
        "output_tensor",
    ),
    _plain("gather", "tensor", root=_DST),
    _plain("scatter", "", "tensor", root=_SRC),
    _plain("reduce_scatter", "input_list", "output"),
    *_aliases(
        "reduce_scatter_tensor",
        ("reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"),
        "input",
        "output",
    ),
    _plain("all_to_all", "input_tensor_list", "output_tensor_list"),
    _plain("all_to_all_single", "input", "output"),
    _plain("barrier", ""),
    _plain("monitored_barrier", ""),
    _plain("all_gather_object", ""),
    _plain("gather_object", "", root=_DST),
    _plain("broadcast_object_list", "", root=_SRC),
    _plain("scatter_object_list", "", root=_SRC),
    _plain("send", "tensor", root=_DST, pairwise=True),
    _plain("recv", "", "tensor", root=_SRC, pairwise=True),
    _plain("isend", "tensor", root=_DST, pairwise=True, asynchronous=True),
    _plain("irecv", "", "tensor", root=_SRC, pairwise=True, asynchronous=True),
)
"""Attributes of ``torch.distributed`` and of the module it takes them from."""


def _functional(name: str, operation: str) -> Entry:
    return _plain(name, "self", operation=operation, asynchronous=True, functional=True)


FUNCTIONAL_ENTRIES: tuple[Entry, ...] = (
    _functional("all_reduce", "all_reduce"),
    _functional("broadcast", "broadcast"),
    _functional("all_gather_single", "all_gather_into_tensor"),
    _functional("all_gather_tensor", "all_gather_into_tensor"),
    _functional("all_gather_single_autograd", "all_gather_into_tensor"),
    _functional("all_gather_tensor_autograd", "all_gather_into_tensor"),
    _functional("reduce_scatter_single", "reduce_scatter_tensor"),
    _functional("reduce_scatter_tensor", "reduce_scatter_tensor"),
    _functional("reduce_scatter_single_autograd", "reduce_scatter_tensor"),
    _functional("reduce_scatter_tensor_autograd", "reduce_scatter_tensor"),
    _functional("all_to_all_single", "all_to_all_single"),
    _functional("all_to_all_single_autograd", "all_to_all_single"),
)
"""Attributes of ``torch.distributed._functional_collectives``."""


class Reader:
    """Finds an entry point's arguments by name without binding the whole call."""

    def __init__(self, function: Function) -> None:
        """Take the parameter order from the function's signature."""
        parameters = inspect.signature(function).parameters
        self._places = {name: place for place, name in enumerate(parameters)}

    def get(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return an argument, None where the call does not give it."""
        if name in kwargs:
            return kwargs[name]
        place = self._places.get(name)
        return args[place] if place is not None and place < len(args) else None
