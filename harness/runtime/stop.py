"""SIGTERM, SIGINT and Slurm's warning as a flag that the leader looks at between steps."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from harness.record.verdict import ExitCode


class RunStopped(BaseException):
    """A signal came while the leader ran a rank's own code."""


class StopRequest:
    """Set by a signal, seen by whoever waits.

    A handler that raised could cut a record in half; the leader never sleeps longer than a
    fraction of a second, so a flag is soon enough. Only code of a rank, which may run for long,
    is interrupted.

    Attributes:
        looks: Called each time somebody asks; what they find out may be a request too.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._raises = False
        self.looks: list[Callable[[], None]] = []

    def install(self) -> None:
        """Take over SIGTERM, SIGINT and SIGUSR1 of this process (main thread only).

        SIGUSR1 is what batch scripts ask Slurm to send some time before a job's limit.
        """
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, self._note)

    def request(self, number: int) -> None:
        """Stop as if this signal had come."""
        self._note(number, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._signal is None:
            self._signal = number
            if self._raises:
                raise RunStopped

    @contextlib.contextmanager
    def interrupting(self) -> Iterator[None]:
        """Let a signal raise ``RunStopped`` inside this block."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def __call__(self) -> bool:
        """Tell whether the run shall stop."""
        for look in self.looks:
            look()
        return self._signal is not None

    @property
    def exit_code(self) -> ExitCode:
        """The shell's code for the signal that came; a warning counts as SIGTERM."""
        assert self._signal is not None
        return ExitCode.INTERRUPTED if self._signal == signal.SIGINT else ExitCode.TERMINATED
