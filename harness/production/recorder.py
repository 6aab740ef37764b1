"""What the hooks saw during one forward: calls in order, with the tensors they were given."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.record.evidence import AddressFaultEvidence
from harness.record.phase import Phase


@dataclass(slots=True)
class HookCall:
    """One call of a hooked symbol.

    Attributes:
        arguments: Arguments by parameter name.
        result: What it returned; None also when it declined or raised. Integer tensors are copies.
        raw: The very object that it returned, for symbols of ``Recorder.raw``.
        returned: False while it runs and when it raised.
        origin: ``megatron``, ``hardware`` or ``modelled``.
        caller: Function that called it, such as ``DSAttention.forward``; empty for kernels.
        function: The hooked function itself; None for kernels.
        took_s: Seconds until it returned, of this process's clock.
    """

    symbol: str
    origin: str
    layer: int
    arguments: dict[str, Any]
    result: Any = None
    raw: Any = None
    returned: bool = False
    depth: int = 0
    caller: str = ""
    function: Callable[..., Any] | None = None
    took_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A log line that the build's DSA modules emitted during a forward.

    Attributes:
        layer: Layer that ran.
        source: Module that said it, such as ``dsa_kernels``.
        warning: True from level WARNING on: what a user gets to see.
    """

    layer: int
    source: str
    warning: bool
    text: str


Reducer = Callable[["HookCall"], None]
"""Replaces what a call holds by what its evidence needs, right after it returned."""

Dresser = Callable[[str, Any], Any]
"""Changes an argument, by name and value, on its way into a hooked symbol."""

Transform = Callable[[HookCall, Any], Any]
"""Changes a hooked symbol's result; planted faults use it."""


@dataclass(slots=True)
class Recorder:
    """Collects the hook calls of one forward on one rank.

    Attributes:
        on_phase: Called when a hook with a phase is entered, before the call, so that a journal
            line stands on disk if the call never returns.
        transforms: Symbol to function applied to that symbol's result.
        dressers: Symbol to function applied to each of its arguments.
        reducers: Symbol to function that slims the kept call, so that score matrices of a long
            pack are not all held until the forward ends.
        findings: Accesses outside a row that modelled kernels made without a fault, as a GPU would.
        messages: Log lines of the build in this forward.
        compiled: Keys under which kernels were compiled so far, by kernel; outlives a forward, as
            a process's compiled kernels do.
        absent: Hooks that the build lacks and may lack.
        raw: Symbols whose very results are kept, to tell objects apart.
        forwards: Number of the forward, from 1.
        planted: State of planted faults that outlives a forward.
    """

    on_phase: Callable[[Phase], None] = lambda _phase: None
    transforms: dict[str, Transform] = field(default_factory=dict)
    dressers: dict[str, Dresser] = field(default_factory=dict)
    reducers: dict[str, Reducer] = field(default_factory=dict)
    findings: list[AddressFaultEvidence] = field(default_factory=list)
    calls: list[HookCall] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    compiled: dict[str, set[str]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    raw: set[str] = field(default_factory=set)
    forwards: int = 0
    planted: dict[str, Any] = field(default_factory=dict)
    layer: int = 1
    _depth: int = 0

    def clear(self) -> None:
        """Forget the calls of the previous forward, and the tensors they hold."""
        self.calls = []
        self.findings = []
        self.messages = []
        self.forwards += 1

    @contextlib.contextmanager
    def aside(self) -> Iterator[list[HookCall]]:
        """Keep calls made inside apart from the forward's, and untouched by planted faults.

        Yields:
            The calls made inside, in order.
        """
        kept = self.calls, self.transforms, self._depth
        self.calls, self.transforms, self._depth = [], {}, 0
        try:
            yield self.calls
        finally:
            self.calls, self.transforms, self._depth = kept

    def record(
        self,
        symbol: str,
        origin: str,
        phase: Phase | None,
        arguments: dict[str, Any],
        call: Callable[[], Any],
        caller: str = "",
        function: Callable[..., Any] | None = None,
    ) -> Any:
        """Run ``call`` as a call of ``symbol`` and keep what went in and out."""
        if phase is not None:
            self.on_phase(phase)
        seen = HookCall(
            symbol=symbol,
            origin=origin,
            layer=self.layer,
            arguments=arguments,
            depth=self._depth,
            caller=caller,
            function=function,
        )
        self.calls.append(seen)
        self._depth += 1
        began = time.perf_counter()
        try:
            result = call()
        finally:
            self._depth -= 1
            seen.took_s = time.perf_counter() - began
        transform = self.transforms.get(symbol)
        if transform is not None:
            result = transform(seen, result)
        seen.result = _kept(result)
        seen.raw = result if symbol in self.raw else None
        seen.returned = True
        reducer = self.reducers.get(symbol)
        if reducer is not None:
            reducer(seen)
        return result

    def of(self, symbol: str, *, layer: int | None = None) -> list[HookCall]:
        """Calls of one symbol in order, of one layer when given."""
        return [
            call
            for call in self.calls
            if call.symbol == symbol and (layer is None or call.layer == layer)
        ]

    def counts(self, *, layer: int | None = None) -> dict[str, int]:
        """Number of calls per symbol."""
        counts: dict[str, int] = {}
        for call in self.calls:
            if layer is None or call.layer == layer:
                counts[call.symbol] = counts.get(call.symbol, 0) + 1
        return counts


def _kept(result: Any) -> Any:
    """Copy the integer tensors of a result: the caller may overwrite selected keys in place.

    (0.19.2 turns empty slots into key 0 for its backward pass, in the scorer's own tensor.) Float
    tensors are kept by reference; score matrices are large and nothing overwrites them.
    """
    if isinstance(result, torch.Tensor):
        is_index = not (result.is_floating_point() or result.is_complex())
        return result.clone() if is_index else result
    if isinstance(result, dict):
        # cudnn's result object is a dict whose iteration yields values, hence keys().
        return {name: _kept(result[name]) for name in result.keys()}  # noqa: SIM118
    if isinstance(result, tuple):
        return tuple(_kept(item) for item in result)
    return result
