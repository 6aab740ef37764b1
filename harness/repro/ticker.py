"""Progress of a tool that works for minutes: whole lines, and one that changes on a terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_PLAIN_S = 10.0
_TERMINAL_S = 0.5


class Ticker:
    """Writes lines, and between them how things stand.

    On a terminal that is one line which changes; elsewhere a plain line now and then.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Write to a stream, standard error by default, so that output can be piped on."""
        self._stream = stream or sys.stderr
        self._on_terminal = self._stream.isatty()
        self._every_s = _TERMINAL_S if self._on_terminal else _PLAIN_S
        self._next_s = time.monotonic() + self._every_s
        self._open = 0

    def say(self, line: str) -> None:
        """Write a whole line."""
        self._clear()
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def tick(self, text: str) -> None:
        """Show how things stand, if the last time was long enough ago."""
        now = time.monotonic()
        if now < self._next_s:
            return
        self._next_s = now + self._every_s
        if not self._on_terminal:
            self.say(text)
            return
        self._clear()
        shown = text[:110]
        self._stream.write(shown)
        self._stream.flush()
        self._open = len(shown)

    def end(self) -> None:
        """Leave nothing half written."""
        self._clear()
        self._stream.flush()

    def _clear(self) -> None:
        if self._open:
            self._stream.write("\r" + " " * self._open + "\r")
            self._open = 0
