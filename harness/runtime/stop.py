"""SIGTERM and SIGINT as a flag that the leader looks at between steps."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

from harness.record.verdict import ExitCode


class RunStopped(BaseException):
    """A signal came while the leader ran a rank's own code."""


class StopRequest:
    """Set by a signal, seen by whoever waits.

    A handler that raised could cut a record in half; the leader never sleeps longer than a
    fraction of a second, so a flag is soon enough. Only code of a rank, which may run for long,
    is interrupted.
    """

    def __init__(self) -> None:
        self._signal: int | None = None
        self._raises = False

    def install(self) -> None:
        """Take over SIGTERM and SIGINT of this process (main thread only)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

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
        return self._signal is not None

    @property
    def exit_code(self) -> ExitCode:
        """The shell's code for the signal that came."""
        assert self._signal is not None
        return ExitCode(128 + self._signal)
