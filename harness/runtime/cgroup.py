"""How often the kernel's out-of-memory killer struck in this process's cgroup. No torch.

A process that it ends dies by SIGKILL like any other, and its log line is not for every user to
read. The counter is: ``memory.events`` of cgroup v2, or ``memory.oom_control`` of v1.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harness.record.result import RankOutcome

_V1_CONTROLLER = "memory"


def oom_kills(pid: int | None = None, *, root: Path = Path("/")) -> int | None:
    """Return the counter of the innermost cgroup of a process that has one.

    Args:
        pid: The process, None for this one.
        root: Where ``proc`` and ``sys`` are found.

    Returns:
        Kills since the cgroup was made, None where no cgroup counts them.
    """
    text = _read(root / "proc" / ("self" if pid is None else str(pid)) / "cgroup")
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for file in _files(controllers, path, root / "sys/fs/cgroup"):
            found = _counter(_read(file))
            if found is not None:
                return found
    return None


def _files(controllers: str, path: str, mount: Path) -> Iterator[Path]:
    """Counter files of one hierarchy, innermost cgroup first.

    Inside a container the path may name cgroups that are not mounted here; its parents, up to the
    root of the mount, then count for the container as a whole.
    """
    if controllers == "":
        mounts = [(mount, "memory.events"), (mount / "unified", "memory.events")]
    elif _V1_CONTROLLER in controllers.split(","):
        mounts = [(mount / _V1_CONTROLLER, "memory.oom_control")]
    else:
        return
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for base, name in mounts:
        for depth in range(len(parts), -1, -1):
            yield base.joinpath(*parts[:depth]) / name


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _counter(text: str) -> int | None:
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdigit():
            return int(value)
    return None


class OomWatch:
    """The counter of a node's supervising process over one attempt."""

    def __init__(
        self, root: Path = Path(os.sep), *, read: Callable[[], int | None] | None = None
    ) -> None:
        """Read the counter, by ``read`` where it is given, else that of this process's cgroup."""
        self._read = read or (lambda: oom_kills(root=root))
        self._before = self._read()

    def kills(self) -> int:
        """Return by how much the counter rose since; 0 where nothing counts."""
        after = self._read()
        if self._before is None or after is None:
            return 0
        return max(0, after - self._before)


def with_oom_kills(ranks: Sequence[RankOutcome], kills: int) -> tuple[RankOutcome, ...]:
    """Mark the ranks that the killer may have ended: by SIGKILL, which the harness did not send."""
    return tuple(
        replace(rank, oom_kills=kills)
        if kills and rank.signal == signal.SIGKILL and not rank.ended_by_harness
        else rank
        for rank in ranks
    )
