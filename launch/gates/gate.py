"""A gate: one thing that has to hold before the next is worth trying, with a limit of its own."""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from harness.record.text import visible
from harness.record.verdict import ExitCode

ROOT = Path(__file__).resolve().parents[2]
_TAIL_LINES = 6
_TAIL_BYTES = 8192


class GateState(enum.StrEnum):
    """How a gate ended."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """One gate.

    Attributes:
        name: Short, unique.
        what: What holds when it passes.
        command: Words of the process that decides it: exit code 0 passes, 5 says on its last line
            what is missing, anything else fails with its last lines.
        limit_s: After that many seconds it is ended, and has failed.
        todo: What to do when it fails.
        behind: Gates without which it says nothing.
    """

    name: str
    what: str
    command: tuple[str, ...]
    limit_s: float
    todo: str
    behind: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class GateResult:
    """What a gate showed.

    Attributes:
        found: Its own last line, or why it was not run.
        tail: Its last lines, when it failed.
    """

    gate: Gate
    state: GateState
    found: str
    seconds: float = 0.0
    tail: tuple[str, ...] = ()

    @property
    def lines(self) -> Iterator[str]:
        """The lines that a reader sees."""
        yield visible(
            f"{self.state:<7}  {self.gate.name}: {self.found or self.gate.what}"
            f"  ({self.seconds:.1f} s)"
        )
        if self.state is GateState.FAILED:
            yield from (f"         | {visible(line)}" for line in self.tail)
            yield f"         expected: {self.gate.what}"
            yield f"         do: {self.gate.todo}"


def run_gates(
    gates: Sequence[Gate], *, on_begin: Callable[[Gate], None] = lambda gate: None
) -> Iterator[GateResult]:
    """Run gates in order; one behind a gate that did not pass is not run, and says so."""
    before: dict[str, GateResult] = {}
    for gate in gates:
        stopped = [before[name] for name in gate.behind if not _passed(before.get(name))]
        if stopped:
            result = GateResult(gate=gate, state=GateState.NOT_RUN, found=_why(stopped[0]))
        else:
            on_begin(gate)
            result = run_gate(gate)
        before[gate.name] = result
        yield result


def _passed(result: GateResult | None) -> bool:
    return result is not None and result.state is GateState.PASSED


def _why(stopped: GateResult) -> str:
    """Say why a gate is not run: what is missing for the one before it, or that it failed."""
    if stopped.state is GateState.NOT_RUN:
        return stopped.found
    return f"stands behind {stopped.gate.name}, which failed"


def run_gate(gate: Gate) -> GateResult:
    """Run one gate in a session of its own and leave nothing of it behind."""
    began = time.monotonic()
    with _unwound_by_sigterm(), tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            gate.command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(timeout=gate.limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        tail = _tail(output.fileno())
    seconds = time.monotonic() - began
    last = tail[-1] if tail else ""
    if code == 0:
        return GateResult(gate=gate, state=GateState.PASSED, found=last, seconds=seconds)
    if code == int(ExitCode.NOTHING_RAN):
        return GateResult(gate=gate, state=GateState.NOT_RUN, found=last, seconds=seconds)
    found = _ended(code, gate.limit_s)
    return GateResult(gate=gate, state=GateState.FAILED, found=found, seconds=seconds, tail=tail)


@contextlib.contextmanager
def _unwound_by_sigterm() -> Iterator[None]:
    """Have a SIGTERM, as ``timeout`` sends it, end the gate's processes on its way out."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ended(code: int | None, limit_s: float) -> str:
    if code is None:
        return f"did not end within {limit_s:.0f} s"
    if code < 0:
        return f"ended by signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _tail(descriptor: int) -> tuple[str, ...]:
    size = os.lseek(descriptor, 0, os.SEEK_END)
    os.lseek(descriptor, max(0, size - _TAIL_BYTES), os.SEEK_SET)
    text = os.read(descriptor, _TAIL_BYTES).decode(errors="replace")
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return tuple(lines[-_TAIL_LINES:])
