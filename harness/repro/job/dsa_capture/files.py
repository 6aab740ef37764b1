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

Line = dict[str, Any]


class RingFiles:
    """Writer of JSON lines that keeps the last microbatches.

    Attributes:
        lost: Lines that could not be written, for want of space or because the folder is gone.
    """

    def __init__(
        self, folder: Path, stem: str, ring: int, header: Callable[[], list[Line]]
    ) -> None:
        """Prepare; the first file appears with the first microbatch.

        Args:
            folder: Folder of all ranks, created when it is missing.
            stem: Beginning of both file names.
            ring: Microbatches in one file.
            header: Lines with which every file begins.
        """
        self._paths = tuple(folder / f"{stem}.{part}.jsonl" for part in (0, 1))
        self._ring = ring
        self._header = header
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
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor = -1

    def _open(self, path: Path) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(path, flags, 0o644)
        except OSError:
            self.lost += 1
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
        except OSError:
            self.lost += 1
            return
        self._is_cut = written != len(data)
        self.lost += self._is_cut
