"""A file in which Python's fault handler says which signal ended the process, and where it was."""

from __future__ import annotations

import faulthandler
import signal
from pathlib import Path
from typing import IO

from .trouble import Trouble


def tell_signals(path: Path, trouble: Trouble) -> IO[bytes] | None:
    """Have a fatal signal, or the request to end, leave its stack in a file.

    The fault handler is left alone where the job has switched it on itself. A request to end goes
    on to whatever handled it before.

    Args:
        path: The file.
        trouble: Told where there can be none.

    Returns:
        The file, to be kept open; None where there can be none.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stream = open(path, "ab", buffering=0)  # noqa: SIM115 (open as long as the process lives)
    except OSError as error:
        trouble.tell(error)
        return None
    if not faulthandler.is_enabled():
        faulthandler.enable(stream, all_threads=True)
    faulthandler.register(signal.SIGTERM, stream, all_threads=False, chain=True)
    return stream
