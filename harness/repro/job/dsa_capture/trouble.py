"""What the job's log says where nothing can be written: one line, and the job goes on."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path


class Trouble:
    """Teller of one process; the first error is told, the others are only counted elsewhere."""

    def __init__(self, folder: Path) -> None:
        """Prepare.

        Args:
            folder: Folder that is written to, for the line.
        """
        self._folder = folder
        self._told = False

    def tell(self, error: OSError | str) -> None:
        """Say why something could not be written; it never raises."""
        if self._told:
            return
        self._told = True
        why = error if isinstance(error, str) else error.strerror or repr(error)
        line = f"dsa_capture: {self._folder}: {why}; what this process records is lost or has gaps"
        # The job may have closed its standard error, or have none.
        with contextlib.suppress(Exception):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
