"""SIGTERM and SIGINT as a flag that the leader looks at between steps."""

from __future__ import annotations

import signal
from types import FrameType

from harness.record.verdict import ExitCode


class StopRequest:
    """Set by a signal, seen by whoever waits.

    A handler that raised could cut a record in half; the leader never sleeps longer than a
    fraction of a second, so a flag is soon enough.
    """

    def __init__(self) -> None:
        self._signal: int | None = None

    def install(self) -> None:
        """Take over SIGTERM and SIGINT of this process (main thread only)."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._signal is None:
            self._signal = number

    def __call__(self) -> bool:
        """Tell whether the run shall stop."""
        return self._signal is not None

    @property
    def exit_code(self) -> ExitCode:
        """The shell's code for the signal that came."""
        assert self._signal is not None
        return ExitCode(128 + self._signal)
