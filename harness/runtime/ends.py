"""The leader's own journal of an attempt: what the ranks' journals cannot tell.

``ranks/<scenario>/<attempt>/ends.jsonl`` gets a line when the attempt starts, one for each end of a
rank as soon as it is seen, and one with everything the verdict is computed from when all ranks have
ended. With the ranks' journals it is enough to judge the attempt again, or at last, from files.

    {"e": "begin", "data": {"started_at": "2026-...", "isolation": "scenario", "num_ranks": 4}}
    {"e": "rank", "data": {"global_rank": 1, "pid": 4711, "status": -11, "ended_s": 812.3, ...}}
    {"e": "attempt", "data": {"ranks": [...], "duration_s": 3.1, ...}}
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.record.codec import from_jsonable, to_jsonable
from harness.record.device_fault import CoreDump
from harness.record.evidence import NoteEvidence
from harness.record.phase import Phase
from harness.record.result import RankOutcome
from harness.runtime.options import Isolation

if TYPE_CHECKING:
    from harness.runtime.supervisor import Watch

ENDS_FILE = "ends.jsonl"
"""Name of the leader's journal inside an attempt's folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptBegin:
    """An attempt that is about to start."""

    started_at: str
    isolation: Isolation
    num_ranks: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEnd:
    """The end of one rank's process, or of its task, as the supervisor saw it.

    Attributes:
        status: Exit code, negative for a signal.
        ended_s: Monotonic clock of its host.
        killed: The supervisor ended it.
        deadline: Phase whose limit ran out on it.
        state: Kernel state letter where it was an unusual one.
        lost: Why nobody knows how it ended: its node is out of reach (``node_lost`` of a rank).
    """

    global_rank: int
    pid: int
    status: int | None
    ended_s: float | None = None
    killed: bool = False
    deadline: Phase | None = None
    state: str | None = None
    lost: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEnd:
    """All that an attempt left beside the ranks' journals.

    Attributes:
        shared_with: Ids of scenarios that ran before in the same processes.
        cut_short: Why the run took the attempt down, None when it came to its own end.
    """

    ranks: tuple[RankOutcome, ...]
    duration_s: float
    notes: tuple[NoteEvidence, ...] = ()
    shared_with: tuple[str, ...] = ()
    cut_short: str | None = None
    core_dumps: tuple[CoreDump, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AttemptEnds:
    """What an attempt's ``ends.jsonl`` holds; each part may be missing after a kill."""

    begin: AttemptBegin | None = None
    ranks: dict[int, RankEnd] = field(default_factory=dict)
    end: AttemptEnd | None = None


_KINDS: dict[str, type] = {"begin": AttemptBegin, "rank": RankEnd, "attempt": AttemptEnd}


def append(folder: Path, record: AttemptBegin | RankEnd | AttemptEnd) -> None:
    """Write one line with one write.

    Raises:
        OSError: if it could not be written as a whole.
    """
    (name,) = (name for name, kind in _KINDS.items() if isinstance(record, kind))
    data = json.dumps({"e": name, "data": to_jsonable(record)}).encode() + b"\n"
    path = folder / ENDS_FILE
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        written = os.write(descriptor, data)
        if written != len(data):
            # Says why: a full disk takes a part of a line, and the next write fails.
            os.write(descriptor, data[written:])
    finally:
        os.close(descriptor)


def note_end(watch: Watch) -> None:
    """Write the end of a watched rank down."""
    append(
        Path(watch.task.folder),
        RankEnd(
            global_rank=watch.task.global_rank,
            pid=watch.process.pid,
            status=None if watch.process.lost else watch.status,
            ended_s=watch.ended_s,
            killed=watch.killed,
            deadline=watch.deadline,
            state=watch.state,
            lost=watch.process.lost,
        ),
    )


def read_ends(folder: Path) -> AttemptEnds:
    """Read a leader's journal; a missing file reads as an empty one, cut lines are skipped."""
    try:
        lines = (folder / ENDS_FILE).read_bytes().split(b"\n")
    except FileNotFoundError:
        return AttemptEnds()
    found: dict[str, Any] = {}
    ranks: dict[int, RankEnd] = {}
    for line in lines:
        try:
            item = json.loads(line)
            record: Any = from_jsonable(_KINDS[item["e"]], item["data"])
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(record, RankEnd):
            ranks[record.global_rank] = record
        else:
            found[item["e"]] = record
    return AttemptEnds(begin=found.get("begin"), ranks=ranks, end=found.get("attempt"))
