"""Rank processes as the supervisor sees them: state, stacks, and an end that leaves nothing."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from harness.runtime.nodes import Node


class RankProcess(Protocol):
    """A process of one rank that can be waited for, wherever it was started from.

    Attributes:
        pid: Process id on its node; the process leads a session and group of the same number.
    """

    pid: int

    @property
    def lost(self) -> str | None:
        """Why nobody knows how it ended, None while that can be known."""

    @property
    def ended_s(self) -> float | None:
        """When its end was seen, on its node's monotonic clock, where its node tells."""

    @property
    def node(self) -> Node:
        """Machine it runs on, through which signals reach it."""

    def filenos(self) -> tuple[int, ...]:
        """Return the descriptors that become readable when ``poll`` is worth a call."""

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or None while the task is running."""

    def alive(self) -> bool:
        """Tell whether the process is there, which a shared one is after its task too."""

    def close(self) -> None:
        """Release descriptors after the end."""


def process_state(pid: int) -> str | None:
    """Return the kernel's state letter of a process (``T`` is stopped), None when it is gone."""
    fields = _stat_fields(Path(f"/proc/{pid}/stat"))
    return fields[0] if fields else None


def session_members(sessions: Collection[int]) -> tuple[int, ...]:
    """Return the processes, other than zombies, that belong to the given sessions."""
    return tuple(pid for pid, session in _all_sessions() if session in sessions)


def _all_sessions() -> Iterator[tuple[int, int]]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            fields = _stat_fields(Path(entry.path, "stat"))
            if fields and fields[0] not in "ZX":
                yield int(entry.name), int(fields[3])


def _stat_fields(path: Path) -> list[str]:
    # The command name, in parentheses, may hold anything: read behind its end.
    try:
        return path.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def send_signal(pid: int, number: signal.Signals) -> None:
    """Signal one process; one that is gone is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill_sessions(
    running: Collection[int], ended: Collection[int], limit_s: float
) -> tuple[int, ...]:
    """Kill rank processes with everything in their sessions and wait until they are gone.

    Args:
        running: Session leaders that have not been seen to end.
        ended: Session leaders that have; what they started may still run. Their own process ids
            may be in use again, so only members of their sessions are signalled.
        limit_s: How long to wait.

    Returns:
        Processes that are still there, which only a hanging system call explains.
    """
    # All stand still before the first one dies: a peer that saw its connections close would go on
    # to write of an error that is none of the scenario's.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in running:
            # A child that has not reached setsid yet has no group of its own: ask both ways.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)
            send_signal(pid, number)
    sessions = {*running, *ended}
    limit = time.monotonic() + limit_s
    while left := session_members(sessions):
        if time.monotonic() >= limit:
            break
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        time.sleep(0.01)
    return left


def wait_ended(processes: Sequence[RankProcess], limit_s: float) -> bool:
    """Wait until all processes were seen to end; False when the time is over."""
    limit = time.monotonic() + limit_s
    while any(process.alive() for process in processes):
        if time.monotonic() >= limit:
            return False
        poller = select.poll()
        for process in processes:
            for number in process.filenos():
                poller.register(number, select.POLLIN)
        poller.poll(20)
    return True
