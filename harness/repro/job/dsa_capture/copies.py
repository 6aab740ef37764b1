"""Copies from the device that nobody waits for: pinned memory, an event, and a thread that looks.

The training thread starts a copy and goes on. The writer's thread asks each event whether it has
happened; after a CUDA error events only raise, and then a copy counts as landed when none of the
marks that were put into its memory beforehand is left.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

MARK = -1_879_048_193
"""Put into pinned memory before a copy: no length, and no count, is this number."""

_QUICK_S, _IDLE_S = 0.001, 0.2


class Event(Protocol):
    """What a copy waits for."""

    def query(self) -> bool:
        """Whether it has happened; raises after a CUDA error."""


class Device(Protocol):
    """What the recorder asks of CUDA; tests put a stand-in here."""

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Return host memory ``[num_bytes]`` uint8 that the device can write to."""

    def event(self, like: torch.Tensor) -> Event:
        """Return an event behind all work of the current stream of the device of ``like``."""

    def capturing(self, like: torch.Tensor) -> bool:
        """Whether the current stream records a CUDA graph, in which nothing may be added."""


class CudaDevice:
    """The real one."""

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """See ``Device``. The first call may wait for the device; it is made once a process."""
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def event(self, like: torch.Tensor) -> Event:
        """See ``Device``."""
        return torch.cuda.current_stream(like.device).record_event()

    def capturing(self, like: torch.Tensor) -> bool:
        """See ``Device``."""
        return torch.cuda.is_current_stream_capturing()


class Blocks:
    """Pinned memory in equal blocks."""

    def __init__(self, memory: torch.Tensor, block_bytes: int) -> None:
        """Cut ``memory`` ``[bytes]`` into blocks."""
        self._memory = memory
        self.block_bytes = block_bytes
        self._free = deque(range(memory.numel() // block_bytes))

    def take(self) -> int | None:
        """Return a free block, None when all are on the way."""
        try:
            return self._free.popleft()
        except IndexError:
            return None

    def give(self, block: int) -> None:
        """Return a block that has been read."""
        self._free.append(block)

    def view(self, block: int, dtype: torch.dtype, count: int) -> torch.Tensor:
        """Return the first ``count`` items of a block as one dimension of ``dtype``."""
        start = block * self.block_bytes
        size = count * torch.empty(0, dtype=dtype).element_size()
        return self._memory[start : start + size].view(dtype)


@dataclass(kw_only=True, slots=True)
class Landing:
    """Copies that wait for one event.

    Attributes:
        deliver: Told of the values by name; a name without values did not land. Runs on the
            writer's thread.
    """

    event: Event
    blocks: Blocks
    parts: dict[str, tuple[int, torch.Tensor]]
    deliver: Callable[[dict[str, list[Any]], bool], None]

    def settle(self) -> bool:
        """Deliver when the event has happened; return whether there is nothing left to do."""
        try:
            if not self.event.query():
                return False
            after_error = False
        except RuntimeError:
            after_error = True
        values = {}
        for name, (block, view) in self.parts.items():
            found = view.tolist()
            if not (after_error and MARK in found):
                values[name] = found
            self.blocks.give(block)
        self.deliver(values, after_error)
        return True


@dataclass(slots=True)
class Copies:
    """Starts copies of small tensors.

    Attributes:
        device: CUDA, or what stands in for it.
        block_bytes: Longest copy.
        num_blocks: Copies that may be on the way at a time.
    """

    device: Device
    hand_over: Callable[[Landing], None]
    block_bytes: int = 64 * 2**10
    num_blocks: int = 64
    _blocks: Blocks | None = field(default=None, init=False)

    def start(
        self,
        tensors: Mapping[str, torch.Tensor],
        deliver: Callable[[dict[str, list[Any]], bool], None],
    ) -> tuple[dict[str, list[Any]], dict[str, str]]:
        """Copy tensors of one dimension to the host.

        Args:
            tensors: By name, on the device or on the host.
            deliver: Told later of those on the device.

        Returns:
            Values of those that lie on the host already, and of the others ``pending`` or why
            they were not taken.
        """
        values, states = {}, {}
        parts: dict[str, tuple[int, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            if tensor.device.type == "cpu":
                values[name] = tensor.detach().reshape(-1).tolist()
                continue
            states[name] = self._start(name, tensor.detach(), parts)
        if parts:
            assert self._blocks is not None
            event = self.device.event(tensors[next(iter(parts))])
            self.hand_over(Landing(event=event, blocks=self._blocks, parts=parts, deliver=deliver))
        return values, states

    def _start(
        self, name: str, tensor: torch.Tensor, parts: dict[str, tuple[int, torch.Tensor]]
    ) -> str:
        if self.device.capturing(tensor):
            return "not taken: a CUDA graph is being captured"
        if tensor.numel() * tensor.element_size() > self.block_bytes:
            return f"not taken: {tensor.numel()} entries are more than fit"
        if self._blocks is None:
            memory = self.device.pinned(self.block_bytes * self.num_blocks)
            self._blocks = Blocks(memory, self.block_bytes)
        block = self._blocks.take()
        if block is None:
            return "not taken: too many copies are on the way"
        view = self._blocks.view(block, tensor.dtype, tensor.numel())
        view.fill_(MARK)
        view.copy_(tensor.reshape(-1), non_blocking=True)
        parts[name] = block, view
        return "pending"


class LandingThread:
    """Looks after copies that are on the way."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Landing | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ends = threading.Event()

    def hand_over(self, landing: Landing) -> None:
        """Take charge of copies; the thread starts with the first."""
        self._queue.put(landing)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dsa_capture", daemon=True)
            self._thread.start()

    def finish(self, limit_s: float) -> None:
        """Give what is on the way a last chance."""
        if self._thread is None:
            return
        self._ends.set()
        self._queue.put(None)
        self._thread.join(limit_s)

    def _run(self) -> None:
        waiting: deque[Landing] = deque()
        due_s: float | None = None
        while True:
            self._take_in(waiting)
            for _ in range(len(waiting)):
                landing = waiting.popleft()
                if not landing.settle():
                    waiting.append(landing)
            if self._ends.is_set():
                due_s = due_s or time.monotonic() + 1.0
                if not waiting or time.monotonic() > due_s:
                    return

    def _take_in(self, waiting: deque[Landing]) -> None:
        try:
            new = self._queue.get(timeout=_QUICK_S if waiting else _IDLE_S)
            while True:
                if new is not None:
                    waiting.append(new)
                new = self._queue.get_nowait()
        except queue.Empty:
            return
