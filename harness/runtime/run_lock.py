"""Keeps two processes from writing one run folder, and tells a live run from a killed one.

The leader holds a lock on ``run.lock`` for as long as it lives; the kernel frees it with the
process, SIGKILL included. File systems that keep locks to one host, or refuse them, are common, so
the leader also touches the file now and then: a fresh file of another host counts as held.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path

LOCK_FILE = "run.lock"
"""Name of the lock inside a run folder."""
SIGN_S = 10.0
"""Between two signs of life of the leader."""
STALE_S = 90.0
"""Without a sign for so long, a leader on another host counts as gone."""

_UNSUPPORTED = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


class RunLockedError(ValueError):
    """Another live process writes the run folder."""


class RunLock:
    """Held by the one process that writes a run folder."""

    def __init__(self, folder: Path) -> None:
        """Take the lock.

        Raises:
            RunLockedError: if another process holds it.
            OSError: if the file cannot be made or written.
        """
        self._path = folder / LOCK_FILE
        self._next_sign_s = 0.0
        holder = live_holder(folder)
        if holder is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            if _lock(self._descriptor):
                words = {"host": socket.gethostname(), "pid": os.getpid()}
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, json.dumps(words).encode() + b"\n", 0)
                self.sign()
                return
            os.close(self._descriptor)
            holder = "another process"
        raise RunLockedError(
            f"{folder}: expected a run that nobody writes, found that {holder} does; wait for its "
            "end, or end it"
        )

    def sign(self) -> None:
        """Give a sign of life, at most every few seconds."""
        now = time.monotonic()
        if now >= self._next_sign_s:
            self._next_sign_s = now + SIGN_S
            with contextlib.suppress(OSError):
                os.utime(self._descriptor)

    def release(self) -> None:
        """Let others write, and leave no sign that would keep other hosts waiting."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def forget_leader(folder: Path) -> None:
    """Take away the sign of a leader that is known to be gone, unless the kernel knows better."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CLOEXEC)
        try:
            if _try_lock(descriptor, shared=True) is not False:
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)


def live_holder(folder: Path) -> str | None:
    """Return who writes a run folder, such as ``process 12 on n1``; None when nobody does."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        free = _try_lock(descriptor, shared=True)
        data = os.pread(descriptor, 4096, 0)
        age_s = time.time() - os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
    host, pid = _words(data)
    named = f"process {pid} on {host}" if host else "another process"
    if free is False:
        return named
    # Where locks say nothing, a young sign of life does.
    unsure = host not in ("", socket.gethostname()) or (free is None and bool(host))
    return f"{named}, {age_s:.0f} s ago," if unsure and age_s < STALE_S else None


def _words(data: bytes) -> tuple[str, int]:
    try:
        words = json.loads(data)
        return str(words["host"]), int(words["pid"])
    except (ValueError, KeyError, TypeError):
        return "", 0


def _lock(descriptor: int) -> bool:
    """Lock for writing, over the moments in which somebody only looks."""
    for _ in range(10):
        if _try_lock(descriptor) is not False:
            return True
        time.sleep(0.05)
    return False


def _try_lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Try to lock once; None on a file system without locks."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return None
    return True
