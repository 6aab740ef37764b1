"""Reading faulthandler's stack dumps: where a rank stood when it was asked."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path

from harness.record.collective import CollectiveCall

_HEADER = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>.*)", line \d+ in .*$')


def stack_file(path: str, run_folder: Path) -> str | None:
    """Return the path of a stack file that holds something, relative to the run folder."""
    try:
        size = os.stat(path).st_size
    except OSError:
        return None
    return os.path.relpath(path, run_folder) if size else None


def innermost_file(text: str) -> str | None:
    """Return the source file of the innermost frame of the thread that answered last.

    A dump on request marks that thread as the current one, and it is the main thread, to which the
    kernel hands a process's signals first.
    """
    lines = text.splitlines()
    found = None
    for line, after in itertools.pairwise(lines):
        header = _HEADER.match(line)
        frame = _FRAME.match(after)
        if header is not None and header[1] == "Current thread" and frame is not None:
            found = frame["file"]
    return found


def waits_in_collective(path: str, calls: Iterable[CollectiveCall] = ()) -> bool | None:
    """Tell whether a rank stood inside a torch.distributed call; None without a dump.

    Args:
        path: The rank's stacks.
        calls: Its collective calls: the wait for an asynchronous one is a native call, which
            leaves no frame of torch.
    """
    try:
        file = innermost_file(Path(path).read_text(errors="replace"))
    except OSError:
        return None
    if file is None:
        return None
    return "/torch/distributed/" in file or any(call.stands for call in calls)
