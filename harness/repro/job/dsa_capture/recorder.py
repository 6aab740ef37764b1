"""Turns calls of DSA attention into lines, and copies into later lines."""

from __future__ import annotations

import atexit
import functools
import math
import multiprocessing.util
import os
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from .copies import Copies, CudaDevice, Device, LandingThread
from .facts import call_facts, config_facts, lists_of
from .files import RingFiles
from .scores import NAMES, sample, sampled_rows, statistics
from .settings import Settings
from .signals import tell_signals
from .tensors import TensorStore
from .trouble import Trouble
from .versions import device_facts, global_rank, process_facts, version_facts

SCHEMA = 1
"""Version of the lines."""

_IN_FLIGHT = 256
"""Microbatches whose recomputation can still be told; pipelines hold fewer."""
_CONFIGS = 16
"""Configurations that are told apart; a job has one, or one for each kind of layer."""
_TEXT, _FRAMES = 2000, 16


@dataclass(kw_only=True, slots=True)
class Microbatch:
    """One forward of the model on this rank.

    Attributes:
        number: From 0, in the order in which this process began them.
        is_packed: Whether it has a ``PackedSeqParams``.
        carrier: Returns that object while it lives.
        layers: Layers whose attention was entered.
        replayed: Layers that were entered again by backward.
    """

    number: int
    is_packed: bool
    carrier: Callable[[], Any]
    layers: set[int] = field(default_factory=set)
    replayed: set[int] = field(default_factory=set)

    def carries(self, packed: Any) -> bool:
        """Whether an object, or the want of one, may be this microbatch's."""
        return self.is_packed == (packed is not None) and self.carrier() is packed

    def is_due(self, packed: Any, layer: int) -> bool:
        """Whether a layer that backward enters may be this microbatch's."""
        return layer in self.layers and layer not in self.replayed and self.carries(packed)


@dataclass(kw_only=True, slots=True)
class Call:
    """One call of a layer's attention that has begun."""

    microbatch: int
    layer: int
    is_replay: bool
    is_first: bool
    num_scores: int = 0


class Recorder:
    """Recorder of one process. No method waits for the device."""

    def __init__(self, settings: Settings, device: Device | None = None) -> None:
        """Prepare; nothing is written before the first call.

        Args:
            settings: What to keep, and where.
            device: CUDA, or what a test puts in its place.
        """
        self.settings = settings
        self.pid = os.getpid()
        self._rank = global_rank()
        self._configs: dict[int, tuple[Any, dict[str, Any]]] = {}
        stem = f"rank{self._rank:05d}.{time.time_ns() // 10**6}.{self.pid}"
        trouble = Trouble(settings.folder)
        self._files = RingFiles(settings.folder, stem, settings.ring, self._header, trouble)
        self._thread = LandingThread()
        device = device or CudaDevice()
        self._copies = Copies(device, self._thread.hand_over)
        # One microbatch may have some hundreds of score matrices, and runs far ahead of its device.
        self._score_copies = Copies(device, self._thread.hand_over, block_bytes=64, num_blocks=4096)
        self._store = TensorStore(settings, stem, self._copies.device, self._thread.hand_over)
        self._recent: deque[Microbatch] = deque(maxlen=_IN_FLIGHT)
        self._count = 0
        self._lock = threading.Lock()
        self._local = threading.local()
        self._process = {
            **process_facts(),
            "versions": version_facts(),
            "score_rows": settings.score_rows,
        }
        self._closed = False
        atexit.register(self.close)
        # Children of multiprocessing leave without atexit.
        multiprocessing.util.Finalize(None, self.close, exitpriority=10)
        _tell_uncaught(self)
        self._stacks = tell_signals(settings.folder / f"{stem}.stacks", trouble)

    def enter(self, module: Any, given: Mapping[str, Any]) -> Call:
        """Write what a call is about to do.

        Args:
            module: The attention module.
            given: Arguments of its forward by name.
        """
        layer = int(module.layer_number)
        packed = given.get("packed_seq_params")
        # Backward runs inside a task of the autograd engine: what is entered there is a replay.
        is_replay = torch._C._current_graph_task_id() != -1
        with self._lock:
            found, is_new = self._place(packed, layer, is_replay=is_replay)
        if is_new:
            self._begin(found, module, given, layer)
        call = Call(microbatch=found.number, layer=layer, is_replay=is_replay, is_first=is_new)
        self._write("enter", call)
        self._calls().append(call)
        return call

    def leave(self, call: Call, output: Any) -> None:
        """Write that a call came back; its layer's backward is told once it runs."""
        self._forget(call)
        self._write("leave", call, scores=call.num_scores)
        if call.is_first and isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(functools.partial(self._backward, call.microbatch))

    def failed(self, call: Call, error: BaseException) -> None:
        """Write the exception with which a call ended; values that a program held are not told."""
        self._forget(call)
        self._write("exception", call, **_error_facts(error))

    def scores(self, scores: torch.Tensor, *, kernel: str) -> None:
        """Start the statistics of a score matrix ``[..., rows, keys]`` of the call at work."""
        calls = self._calls()
        if not calls or scores.dim() < 2:
            return
        call = calls[-1]
        matrix = scores.detach().reshape(-1, scores.shape[-1])
        rows, keys = matrix.shape
        count = sampled_rows(rows, keys, self.settings.score_rows)
        if not count or self._is_capturing(matrix):
            return
        rows_seen = sample(matrix, count, call.microbatch)
        with torch.no_grad():
            values = statistics(rows_seen)
        place = {
            "number": call.num_scores,
            "kernel": kernel,
            "rows": rows,
            "keys": keys,
            "sampled": rows_seen.shape[0],
        }
        call.num_scores += 1

        def deliver(landed: dict[str, list[Any]], after_error: bool) -> None:
            if "scores" in landed:
                named = dict(zip(NAMES, map(_json_number, landed["scores"]), strict=True))
                more = {"after_error": True} if after_error else {}
                self._write("scores", call, **place, **named, **more)

        now, _states = self._score_copies.start({"scores": values}, deliver)
        if now:
            deliver(now, False)

    def tensors(self, given: Mapping[str, torch.Tensor]) -> None:
        """Keep tensors of the call at work, as far as the budget allows."""
        calls = self._calls()
        if not calls or calls[-1].is_replay or not self._store.wants(calls[-1].layer):
            return
        call = calls[-1]

        def deliver(states: dict[str, str]) -> None:
            self._write("tensors", call, states=states)

        due = self._store.describe(given, call.microbatch, call.layer)
        self._write("tensors_due", call, tensors=due)
        self._store.keep(given, due, deliver)

    def close(self) -> None:
        """Give copies on the way a last chance and write that the process ended by itself."""
        if os.getpid() != self.pid or self._closed:
            return
        self._closed = True
        # In a child of multiprocessing an exception is still on its way out here.
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, SystemExit):
            self.uncaught(error)
        self._thread.finish(2.0)
        if self._count:
            self._files.write({"e": "end", "t": time.monotonic(), "lost": self._files.lost})
        self._files.close()

    def uncaught(self, error: BaseException) -> None:
        """Write an exception that nothing in the process caught."""
        if os.getpid() == self.pid and self._count:
            self._files.write({"e": "uncaught", "t": time.monotonic(), **_error_facts(error)})

    def _place(self, packed: Any, layer: int, *, is_replay: bool) -> tuple[Microbatch, bool]:
        """Find the microbatch that a call belongs to, or begin one.

        A packed one is known by its ``PackedSeqParams``, which all its layers share; where that
        object comes again, or there is none, a layer that was entered already begins a new one.
        """
        if is_replay:
            due = next((one for one in self._recent if one.is_due(packed, layer)), None)
            if due is not None:
                due.replayed.add(layer)
                return due, False
        else:
            last = next((one for one in reversed(self._recent) if one.carries(packed)), None)
            # Layers of an unpacked microbatch only follow each other.
            goes_on = last is not None and (packed is not None or last is self._recent[-1])
            if last is not None and goes_on and layer not in last.layers:
                last.layers.add(layer)
                return last, False
        made = Microbatch(
            number=self._count,
            is_packed=packed is not None,
            carrier=_weakly(packed),
            layers={layer},
        )
        self._count += 1
        self._recent.append(made)
        return made, True

    def _begin(
        self, microbatch: Microbatch, module: Any, given: Mapping[str, Any], layer: int
    ) -> None:
        number = microbatch.number
        # Taken first: a copy may land, and be written, before the line of its microbatch is.
        begun = {"t": time.monotonic(), "wall": time.time()}
        place, is_new = self._config_place(module.config)
        self._files.begin_microbatch()
        if is_new:
            self._files.write(self._config_lines()[place])
        packed = given.get("packed_seq_params")
        tensors, same = ({}, {}) if packed is None else lists_of(packed)

        def deliver(landed: dict[str, list[Any]], after_error: bool) -> None:
            more = {"after_error": True} if after_error else {}
            line = {"e": "lengths", "n": number, "t": time.monotonic(), "values": landed, **more}
            self._files.write(line)

        values, states = self._copies.start(tensors, deliver)
        self._files.write(
            {
                "e": "microbatch",
                "n": number,
                **begun,
                "layer": layer,
                "config": place,
                "values": values,
                "states": states,
                "same": same,
                **call_facts(module, given),
            }
        )

    def _config_place(self, config: Any) -> tuple[int, bool]:
        """Return the number of a configuration, and whether it is a new one."""
        is_new = id(config) not in self._configs and len(self._configs) < _CONFIGS
        if is_new:
            # Held, so that no other configuration takes its place in memory.
            self._configs[id(config)] = config, config_facts(config)
        known = list(self._configs)
        return (known.index(id(config)) if id(config) in known else len(known) - 1), is_new

    def _header(self) -> list[dict[str, Any]]:
        process = {
            "e": "process",
            "schema": SCHEMA,
            "rank": self._rank,
            "t": time.monotonic(),
            "wall": time.time(),
            **self._process,
            "device": device_facts(),
        }
        return [process, *self._config_lines()]

    def _config_lines(self) -> list[dict[str, Any]]:
        numbered = enumerate(self._configs.values())
        return [{"e": "config", "config": n, "fields": facts} for n, (_config, facts) in numbered]

    def _write(self, event: str, call: Call, **more: Any) -> None:
        line = {"e": event, "n": call.microbatch, "layer": call.layer, "t": time.monotonic()}
        if call.is_replay:
            line["replay"] = True
        self._files.write(line | more)

    def _backward(self, microbatch: int, _gradient: torch.Tensor) -> None:
        self._files.write({"e": "backward", "n": microbatch, "t": time.monotonic()})

    def _is_capturing(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type != "cpu" and self._copies.device.capturing(tensor)

    def _calls(self) -> list[Call]:
        if not hasattr(self._local, "calls"):
            self._local.calls = []
        found: list[Call] = self._local.calls
        return found

    def _forget(self, call: Call) -> None:
        calls = self._calls()
        if call in calls:
            calls.remove(call)


def _weakly(packed: Any) -> Callable[[], Any]:
    if packed is None:
        return lambda: None
    try:
        return weakref.ref(packed)
    except TypeError:
        return lambda: packed


def _json_number(value: float) -> float | int | str:
    if not math.isfinite(value):
        return str(value)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _error_facts(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    kind = type(error)
    statement = frames[-1].line if frames else None
    return {
        "type": f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
        "text": str(error)[:_TEXT],
        "frames": [f"{frame.filename}:{frame.lineno}:{frame.name}" for frame in frames],
        "statement": (statement or "")[:200],
    }


def _tell_uncaught(recorder: Recorder) -> None:
    before = sys.excepthook
    here = weakref.ref(recorder)

    def hook(kind: Any, error: BaseException, trace: Any) -> None:
        alive = here()
        if alive is not None:
            alive.uncaught(error)
        before(kind, error, trace)

    sys.excepthook = hook
