"""Sees where a forward waits for the device or copies to and from it, with the line in the build.

Without a GPU the tensors only claim to be on one (``look_alike``); with a GPU the same watcher sits
on the real ones, and CUDA's own check of synchronising calls counts beside it.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from harness.production.look_alike import LookAlike, Operation, PinnedMemory, look_alike_device
from harness.record.transfers import (
    DATA_SHAPE,
    HOST_READ,
    TO_DEVICE,
    TO_HOST,
    WAIT,
    TransferSite,
)

Place = Callable[[], tuple[int, str]]
"""Tells the current layer and phase."""

_STAND_INS = ("/harness/kernels/", "/harness/overlays/causal_offsets.py")
"""Parts of the harness that stand for kernels: what these read, no host would."""
_OVERLAYS = "/harness/overlays/"
"""Other overlays stand for parts of the build, and their waits are real ones."""

_MASKS = (torch.bool, torch.uint8)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Event:
    """One wait or copy, in order; ``collectives`` is how many came before it."""

    layer: int
    site: TransferSite
    collectives: int


@dataclass(slots=True)
class Traffic:
    """Collects the waits and copies of one forward.

    Attributes:
        root: Folder of the build; only lines below it count.
        place: Tells layer and phase of the moment.
        pinned: Host tensors that count as pinned, None to ask torch.
        waits_reported: Synchronising calls that CUDA's own check reported, None without it.
    """

    root: Path
    place: Place
    pinned: PinnedMemory | None = None
    waits_reported: int | None = None
    _events: list[_Event] = field(default_factory=list)
    _collectives: int = 0

    def __call__(self, operation: Operation) -> None:
        """Look at one operator."""
        if operation.func.namespace in ("c10d", "_c10d_functional"):
            self._collectives += 1
            return
        kind = _kind(operation)
        if kind is None:
            return
        copied = _copied(operation) if kind in (TO_DEVICE, TO_HOST) else None
        self._add(
            kind,
            str(operation.func).removesuffix(".default"),
            bytes_=0 if copied is None else copied.numel() * copied.element_size(),
            pinned=None if copied is None else self._is_pinned(operation, copied),
            blocking=not _non_blocking(operation),
        )

    def waited(self) -> None:
        """Note an explicit wait for the device."""
        self._add(WAIT, "torch.cuda.synchronize")

    def _add(
        self,
        kind: str,
        operation: str,
        *,
        bytes_: int = 0,
        pinned: bool | None = None,
        blocking: bool = True,
    ) -> None:
        line = _build_line(self.root)
        if line is None:
            return
        layer, phase = self.place()
        site = TransferSite(
            kind=kind,
            operation=operation,
            site=f"{line[0]}:{line[1]}",
            function=line[2],
            phase=phase,
            count=1,
            bytes=bytes_,
            pinned=pinned,
            blocking=blocking,
        )
        self._events.append(_Event(layer=layer, site=site, collectives=self._collectives))

    def _is_pinned(self, operation: Operation, copied: torch.Tensor) -> bool:
        if self.pinned is not None:
            return not isinstance(copied, LookAlike) and self.pinned.holds(copied)
        return copied.is_pinned()

    def sites(self) -> dict[int, tuple[TransferSite, ...]]:
        """Waits and copies by layer; equal ones of a line are drawn together, in first order."""
        found: dict[int, dict[TransferSite, TransferSite]] = {}
        for event in self._events:
            between = 0 < event.collectives < self._collectives
            one = replace(event.site, between_collectives=between)
            key = replace(one, bytes=0)
            lines = found.setdefault(event.layer, {})
            seen = lines.get(key)
            lines[key] = (
                one
                if seen is None
                else replace(seen, count=seen.count + 1, bytes=seen.bytes + one.bytes)
            )
        return {layer: tuple(lines.values()) for layer, lines in sorted(found.items())}


def _kind(operation: Operation) -> str | None:
    """What an operator on the device means for the host, None when the host does not notice."""
    func, name = operation.func, operation.func.overloadpacket.__name__
    if name in ("_to_copy", "copy_"):
        return _copy_kind(operation, name)
    if not operation.on_device:
        return None
    if name in ("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"):
        return DATA_SHAPE if _waits_for_mask(operation) else None
    if name == "repeat_interleave":
        return None if operation.kwargs.get("output_size") is not None else DATA_SHAPE
    if torch.Tag.data_dependent_output in func.tags:
        return HOST_READ
    return DATA_SHAPE if torch.Tag.dynamic_output_shape in func.tags else None


def _waits_for_mask(operation: Operation) -> bool:
    """Whether indexing counts the true entries of a mask; filling by one with a scalar does not."""
    indices = [t for t in tree_leaves(operation.args[1]) if isinstance(t, torch.Tensor)]
    if not any(index.dtype in _MASKS for index in indices):
        return False
    value = operation.args[2] if len(operation.args) > 2 else None
    fills = isinstance(value, torch.Tensor) and value.numel() == 1 and not _is_on_device(value)
    return not (fills and len(indices) == 1)


def _copy_kind(operation: Operation, name: str) -> str | None:
    if name == "_to_copy":
        if operation.to_device and not operation.on_device:
            return TO_DEVICE
        return TO_HOST if operation.to_host else None
    into, source = (_is_on_device(tensor) for tensor in operation.args[:2])
    if into == source:
        return None
    return TO_DEVICE if into else TO_HOST


def _is_on_device(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, LookAlike) or tensor.is_cuda


def _copied(operation: Operation) -> torch.Tensor:
    """The host side of a copy where there is one, else its source."""
    name = operation.func.overloadpacket.__name__
    found: torch.Tensor = operation.args[0]
    if name == "copy_" and _is_on_device(found):
        found = operation.args[1]
    return found


def _non_blocking(operation: Operation) -> bool:
    name = operation.func.overloadpacket.__name__
    if name == "copy_" and len(operation.args) > 2:
        return bool(operation.args[2])
    return bool(operation.kwargs.get("non_blocking"))


def _build_line(root: Path) -> tuple[str, int, str] | None:
    """File relative to the build, line and function of the innermost frame in the build.

    None when there is none, or when a stand-in of the harness was at work in between.
    """
    prefix = f"{root}/megatron/"
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(prefix):
            return name[len(str(root)) + 1 :], frame.f_lineno, frame.f_code.co_name
        if any(part in name for part in _STAND_INS):
            return None
        if _OVERLAYS in name:
            place = name[name.index(_OVERLAYS) + 1 :]
            return place, frame.f_lineno, frame.f_code.co_name
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


@dataclass(slots=True)
class LayerClock:
    """Knows which layer is at work: 0 outside all of them.

    Attributes:
        layer: Number of the layer.
        idle: What ``layer`` is outside all layers.
    """

    layer: int = 0
    idle: int = 0

    @contextlib.contextmanager
    def over(self, module: torch.nn.Module | None) -> Iterator[LayerClock]:
        """Follow the outermost parts of a module that carry a ``layer_number``."""
        handles = []
        for part in _layers(module):
            handles.append(part.register_forward_pre_hook(self._enter))
            handles.append(part.register_forward_hook(self._leave))
        try:
            yield self
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, part: torch.nn.Module, _inputs: Any) -> None:
        self.layer = int(part.layer_number)  # type: ignore[arg-type]

    def _leave(self, _part: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        self.layer = self.idle


def _layers(module: torch.nn.Module | None) -> Iterator[torch.nn.Module]:
    if module is None:
        return
    if getattr(module, "layer_number", None) is not None:
        yield module
        return
    for child in module.children():
        yield from _layers(child)


@contextlib.contextmanager
def look_alike_traffic(root: Path, place: Place) -> Iterator[Traffic]:
    """Watch a forward on look-alike tensors."""
    traffic = Traffic(root=root, place=place)
    with look_alike_device(traffic, traffic.waited) as pinned:
        traffic.pinned = pinned
        yield traffic


class _RealDevice(TorchDispatchMode):
    """Tells a watcher of every operator that touches a CUDA tensor."""

    def __init__(self, watcher: Traffic) -> None:
        super().__init__()
        self._watcher = watcher

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        tensors = [t for t in tree_leaves((args, given)) if isinstance(t, torch.Tensor)]
        on_device = any(tensor.is_cuda for tensor in tensors)
        asked = given.get("device")
        device = None if asked is None else torch.device(asked)
        operation = Operation(
            func=func,
            args=args,
            kwargs=given,
            on_device=on_device,
            to_device=device is not None and device.type == "cuda",
            to_host=on_device and device is not None and device.type == "cpu",
        )
        if operation.on_device or operation.to_device:
            self._watcher(operation)
        return func(*args, **given)


@contextlib.contextmanager
def device_traffic(root: Path, place: Place) -> Iterator[Traffic]:
    """Watch a forward on a GPU, and have CUDA report the calls that make the host wait."""
    traffic = Traffic(root=root, place=place)
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as seen, _RealDevice(traffic):
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield traffic
        finally:
            torch.cuda.set_sync_debug_mode(before)
    traffic.waits_reported = sum(
        "synchronizing CUDA operation" in str(warning.message) for warning in seen
    )
