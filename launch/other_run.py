"""A run in a process of its own, for commands that make one and go on with its folder."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def run_elsewhere(words: Sequence[str]) -> tuple[Path | None, int]:
    """Run ``dsa-harness run`` with these words.

    Returns:
        The run's folder, None where nothing ran, and its exit code.
    """
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "run"
        command = [sys.executable, "-m", "launch.cli", "run", *words, "--folder-file", str(told)]
        done = subprocess.run(command, check=False)
        run = Path(told.read_text(encoding="utf-8")) if told.exists() else None
    return run, done.returncode
