"""Tensors on request: raw bytes in files of their own, the oldest removed for the budget."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from .copies import Blocks, Device, Landing
from .facts import short_dtype
from .settings import Settings

_MOST_PINNED = 2**30
_ALIGNMENT = 16
_FOLDER = "tensors"


class TensorStore:
    """Keeps tensors of some layers within a budget of bytes on disk."""

    def __init__(
        self,
        settings: Settings,
        stem: str,
        device: Device,
        hand_over: Callable[[Landing], None],
    ) -> None:
        """Prepare; files appear with the first tensor.

        Args:
            settings: Folder, budget and layers.
            stem: Beginning of file names.
            device: Gives pinned memory and events.
            hand_over: Takes charge of copies that are on the way.
        """
        self._settings = settings
        self._stem = stem
        self._device = device
        self._hand_over = hand_over
        self._layers = set(settings.tensor_layers)
        self._kept: deque[tuple[Path, int]] = deque()
        self._kept_bytes = 0
        self._memory: torch.Tensor | None = None
        self._busy = False

    def wants(self, layer: int) -> bool:
        """Whether tensors of a layer are kept; without a list it is the first layer seen."""
        if not self._settings.tensor_bytes:
            return False
        if not self._layers:
            self._layers = {layer}
        return layer in self._layers

    def describe(
        self, given: Mapping[str, torch.Tensor], microbatch: int, layer: int
    ) -> dict[str, dict[str, Any]]:
        """Return file (below the capture's folder), shape and dtype of each tensor."""
        return {
            name: {
                "file": f"{_FOLDER}/{self._stem}.mb{microbatch}.layer{layer}.{name}.bin",
                "shape": list(tensor.shape),
                "dtype": short_dtype(tensor.dtype),
            }
            for name, tensor in given.items()
        }

    def keep(
        self,
        given: Mapping[str, torch.Tensor],
        due: Mapping[str, Mapping[str, Any]],
        deliver: Callable[[dict[str, str]], None],
    ) -> None:
        """Start keeping tensors, all or none of them.

        Args:
            given: Tensors by name.
            due: What ``describe`` says of them.
            deliver: Told ``kept`` or why not, by name, once that is known.
        """
        files = {name: self._settings.folder / due[name]["file"] for name in given}
        total = sum(_room(tensor) for tensor in given.values())
        if total > self._settings.tensor_bytes:
            why = f"not kept: {total} bytes, the budget is {self._settings.tensor_bytes}"
            deliver(dict.fromkeys(given, why))
        elif all(tensor.device.type == "cpu" for tensor in given.values()):
            held = {name: tensor.detach().contiguous() for name, tensor in given.items()}
            deliver({name: self._save(files[name], _bytes(held[name])) for name in held})
        else:
            self._start(given, files, total, deliver)

    def _start(
        self,
        given: Mapping[str, torch.Tensor],
        files: Mapping[str, Path],
        total: int,
        deliver: Callable[[dict[str, str]], None],
    ) -> None:
        like = next(tensor for tensor in given.values() if tensor.device.type != "cpu")
        if self._busy or self._device.capturing(like):
            deliver(dict.fromkeys(given, "not kept: the last ones are on the way, or a capture is"))
            return
        if self._memory is None:
            self._memory = self._device.pinned(min(self._settings.tensor_bytes, _MOST_PINNED))
        if total > self._memory.numel():
            deliver(dict.fromkeys(given, f"not kept: {total} bytes are more than 1 GiB"))
            return
        self._busy = True
        views, start = {}, 0
        for name, tensor in given.items():
            size = tensor.numel() * tensor.element_size()
            views[name] = self._memory[start : start + size].view(tensor.dtype)
            views[name].copy_(tensor.detach().reshape(-1), non_blocking=True)
            start += _room(tensor)

        def landed(_values: dict[str, list[Any]], after_error: bool) -> None:
            if after_error:
                states = dict.fromkeys(views, "not kept: a CUDA error came first")
            else:
                states = {name: self._save(files[name], _bytes(views[name])) for name in views}
            self._busy = False
            deliver(states)

        blocks = Blocks(self._memory, self._memory.numel())
        event = self._device.event(like)
        self._hand_over(Landing(event=event, blocks=blocks, parts={}, deliver=landed))

    def _save(self, file: Path, data: bytes) -> str:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            while self._kept and self._kept_bytes + len(data) > self._settings.tensor_bytes:
                oldest, size = self._kept.popleft()
                self._kept_bytes -= size
                with contextlib.suppress(OSError):
                    os.unlink(oldest)
            file.write_bytes(data)
        except OSError as error:
            return f"not kept: {error.strerror or error}"
        self._kept.append((file, len(data)))
        self._kept_bytes += len(data)
        return "kept"


def _room(tensor: torch.Tensor) -> int:
    """Bytes of a tensor in pinned memory, up to where the next one may begin."""
    size = tensor.numel() * tensor.element_size()
    return (size + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


def _bytes(tensor: torch.Tensor) -> bytes:
    """Raw bytes of a contiguous host tensor, of whatever dtype."""
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
