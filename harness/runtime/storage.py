"""A file system that takes no more, told in one line wherever it shows."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from pathlib import Path

from harness.record.result import RankOutcome

STORAGE_EXIT = 74
"""Exit status of a rank that could not write its own journal (EX_IOERR of sysexits)."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EROFS, errno.EACCES, errno.EPERM)
_BROKEN = (errno.EIO, errno.ESTALE)


class StorageError(OSError):
    """The run folder takes no more; the run cannot go on."""


def is_storage(problem: OSError) -> bool:
    """Tell whether an error is the file system's and not the harness's."""
    return isinstance(problem, StorageError) or problem.errno in (*_FULL, *_REFUSED, *_BROKEN)


def storage_problem(problem: OSError) -> str | None:
    """Return one line for a file system that takes no more, None for any other error."""
    if isinstance(problem, StorageError):
        return str(problem)
    if not is_storage(problem):
        return None
    where = problem.filename or "the run folder"
    if problem.errno in _FULL:
        remedy = "make room on the file system that holds --out"
    elif problem.errno in _REFUSED:
        remedy = "make the run folder writable again"
    else:
        remedy = "see that the file system that holds --out works"
    return f"{where}: {problem.strerror}; {remedy}, then finish the run with --resume"


def check_stored(ranks: Iterable[RankOutcome], folder: Path) -> None:
    """See that every rank could write its files.

    Raises:
        StorageError: naming the first rank that could not.
    """
    for rank in ranks:
        if rank.exit_code == STORAGE_EXIT:
            raise StorageError(
                f"{folder}: rank {rank.global_rank} could not write its journal; make room on the "
                "file system that holds --out, and see that the folder can be written, then finish "
                "the run with --resume"
            )
