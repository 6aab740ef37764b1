"""Ask the kernel to end this process when its parent ends (Linux ``PR_SET_PDEATHSIG``).

torchrun starts its workers in sessions of their own and forked children hold the forkserver's
"alive" descriptor, so without this a killed torchrun leaves workers, forkserver and rank children
running. The request does not survive a fork: every process makes it for itself.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(expected_parent: int | None = None) -> None:
    """Have the kernel send SIGKILL to this process as soon as its parent ends.

    The kernel watches the parent *thread* that created this process, so parents start children
    from their main thread.

    Args:
        expected_parent: Process id of the parent as the caller knows it. Where it is given and
            differs from the parent found after the request was made, the parent ended before the
            request and this process ends at once. None takes the parent at the time of the call.

    Raises:
        OSError: if the kernel refuses the request.
    """
    parent = os.getppid() if expected_parent is None else expected_parent
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_PDEATHSIG) failed: {os.strerror(number)}")
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
