"""Records, inside a training job, which layouts the DSA attention was given before it ran.

Standard library and torch only, and Megatron by name alone: nothing is imported that the job does
not import itself. Switched on by ``switch_on``, or by torch itself at its import where the folder
above this one is on ``PYTHONPATH`` and ``DSA_HARNESS_CAPTURE`` names a folder to write to.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .settings import FOLDER, Settings


def autoload() -> None:
    """Switch the recorder on where the environment asks for it; torch calls it at its import.

    It never raises: torch would refuse to be imported.
    """
    if not os.environ.get(FOLDER):
        return
    try:
        switch_on()
    except Exception as error:  # noqa: BLE001 (a job must run without its recorder)
        print(f"dsa_capture: not switched on: {error!r}", file=sys.stderr)  # noqa: T201


def switch_on(folder: str | Path | None = None) -> Path:
    """Record from now on, in this process.

    Args:
        folder: Folder to write to; default is ``DSA_HARNESS_CAPTURE``, else ``dsa-capture`` in the
            working directory.

    Returns:
        The folder. Files appear in it with the first microbatch.
    """
    from .hooks import watch
    from .recorder import Recorder

    settings = Settings.from_environment(folder)
    watch(lambda: Recorder(settings))
    return settings.folder
