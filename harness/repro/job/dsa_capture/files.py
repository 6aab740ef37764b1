"""A rank's two files, of which one is started anew whenever the other is full.

Each line is one ``os.write`` to a descriptor opened with ``O_APPEND``: what was written before the
process died is in the file, whatever it died of.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .trouble import Trouble

Line = dict[str, Any]


class RingFiles:
    """Writer of JSON lines that keeps the last microbatches.

    Attributes:
        lost: Lines that could not be written, for want of space or because the folder is gone.
    """

    def __init__(
        self,
        folder: Path,
        stem: str,
        ring: int,
        header: Callable[[], list[Line]],
        trouble: Trouble,
    ) -> None:
        """Prepare; the first file appears with the first microbatch.

        Args:
            folder: Folder of all ranks, created when it is missing.
            stem: Beginning of both file names.
            ring: Microbatches in one file.
            header: Lines with which every file begins.
            trouble: Told of what could not be written.
        """
        self._paths = tuple(folder / f"{stem}.{part}.jsonl" for part in (0, 1))
        self._ring = ring
        self._header = header
        self._trouble = trouble
        self._lock = threading.Lock()
        self._descriptor = -1
        self._begun = 0
        self._is_cut = False
        self.lost = 0

    def begin_microbatch(self) -> None:
        """Make room for one more microbatch."""
        with self._lock:
            if self._begun % self._ring == 0:
                self._open(self._paths[self._begun // self._ring % 2])
            self._begun += 1

    def write(self, line: Line) -> None:
        """Write one line; it never raises."""
        with self._lock:
            self._put(line)

    def close(self) -> None:
        """Close the file; lines that come later are lost."""
        with self._lock:
            self._shut()

    def _shut(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        try:
            os.close(descriptor)
        except OSError as error:
            # A file system over the network may say only here that it is full.
            self._fail(error)

    def _fail(self, error: OSError | str) -> None:
        self.lost += 1
        self._trouble.tell(error)

    def _open(self, path: Path) -> None:
        self._shut()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o644)
        except OSError as error:
            self._fail(error)
            return
        self._is_cut = False
        for line in self._header():
            self._put(line)

    def _put(self, line: Line) -> None:
        if self._descriptor < 0:
            self.lost += 1
            return
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if self._is_cut:
            # What a full disk left of an earlier line must not spoil this one.
            data = b"\n" + data
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            self._fail(error)
            return
        self._is_cut = written != len(data)
        if self._is_cut:
            self._fail("No space left for a whole line")
