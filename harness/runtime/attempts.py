"""Executing one scenario under each isolation; every way gives the same record of what happened."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from harness.record.device_fault import CoreDump
from harness.record.evidence import NoteEvidence
from harness.record.result import RankOutcome
from harness.runtime.coredump import collect
from harness.runtime.ends import AttemptBegin, AttemptEnd, append
from harness.runtime.journal import JournalContent
from harness.runtime.nodes import GpuBaselines
from harness.runtime.options import Isolation, Options
from harness.runtime.plan import Planned, make_tasks
from harness.runtime.rank_layout import RankLayout
from harness.runtime.run_folder import RunFolder
from harness.runtime.starters import Starter
from harness.runtime.supervisor import Supervised, Supervisor
from harness.runtime.task import Task

INTERRUPTED = "the run was interrupted while it ran"
"""Why an attempt ended that a signal to the run took down."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Executed:
    """What one attempt left, before anybody judged it.

    Attributes:
        started_at: UTC, ISO 8601.
        shared_with: Scenarios that ran before in the same processes, which a fault retires.
        cut_short: Why the run took it down before its end, such as a signal or a lost node, so that
            it is no evidence about the scenario; None when it came to its own end.
        core_dumps: CUDA core dumps of its ranks.
        lost: Why nothing can run after this attempt, None when the run can go on.
    """

    ranks: tuple[RankOutcome, ...]
    journals: tuple[JournalContent, ...]
    started_at: str
    duration_s: float
    isolation: Isolation
    notes: tuple[NoteEvidence, ...] = ()
    shared_with: tuple[Planned, ...] = ()
    cut_short: str | None = None
    core_dumps: tuple[CoreDump, ...] = ()
    lost: str | None = None

    @property
    def clean(self) -> bool:
        """True when every rank wrote its closing line and ended well."""
        return all(rank.completed and rank.exit_code == 0 for rank in self.ranks)

    @property
    def end(self) -> AttemptEnd:
        """What of it goes to disk beside the ranks' journals."""
        return AttemptEnd(
            ranks=self.ranks,
            duration_s=self.duration_s,
            notes=self.notes,
            shared_with=tuple(item.scenario.id for item in self.shared_with),
            cut_short=self.cut_short,
            core_dumps=self.core_dumps,
        )


class Runner(Protocol):
    """Executes attempts under one isolation."""

    def run(self, item: Planned, attempt: int) -> Executed:
        """Execute one attempt."""

    def close(self) -> None:
        """End what is kept between attempts."""


@dataclass(kw_only=True)
class Places:
    """Where attempts keep their files.

    Attributes:
        scratch: Node-local folder for rendezvous files.
        layout: Where ranks go in a run over several nodes, None on one.
    """

    folder: RunFolder
    scratch: Path
    options: Options
    layout: RankLayout | None = None
    _stores: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def tasks(self, item: Planned, attempt: int, isolation: Isolation) -> tuple[Task, ...]:
        """Make the attempt's folder and return its tasks, with a rendezvous file of their own."""
        folder = self.folder.attempt_folder(item.scenario.id, attempt)
        begin = AttemptBegin(started_at=utc_now(), isolation=isolation, num_ranks=item.num_ranks)
        append(folder, begin)
        tasks = make_tasks(
            item,
            attempt=attempt,
            folder=folder,
            store=self.scratch / f"store-{next(self._stores)}",
            isolation=isolation,
            options=self.options,
        )
        return tasks if self.layout is None else self.layout.place(tasks)

    def with_core_dumps(self, done: Executed, tasks: Sequence[Task]) -> Executed:
        """Look at what core dumps the ranks of a faulty attempt left."""
        if done.clean or not tasks[0].core_dumps:
            return done
        dumps = collect(tasks[0].dumps, self.folder.path, done.ranks)
        return replace(done, core_dumps=dumps)


def drop_store(tasks: Sequence[Task]) -> None:
    """Remove the rendezvous file of an attempt that is over."""
    Path(tasks[0].store).unlink(missing_ok=True)


def utc_now() -> str:
    """Return the time for records."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


class FreshRunner:
    """Isolation ``scenario``: new processes for every attempt."""

    def __init__(self, places: Places, starter: Starter, supervisor: Supervisor) -> None:
        self._places = places
        self._starter = starter
        self._supervisor = supervisor

    def run(self, item: Planned, attempt: int) -> Executed:
        """Execute one attempt in processes of its own.

        Raises:
            SpawnerError: if what starts processes was lost.
        """
        tasks = self._places.tasks(item, attempt, "scenario")
        started_at = utc_now()
        baseline = GpuBaselines(self._supervisor.nodes) if item.device == "cuda" else None
        # One for each attempt: it holds the attempt's state, and others may run beside it.
        supervisor = replace(self._supervisor)
        try:
            done = supervisor.run(
                tasks, lambda task: self._starter.start("single", task.to_json(), task.worker)
            )
        finally:
            drop_store(tasks)
        if not (done.clean or done.interrupted):
            self._starter.check()
        unclean = baseline.unclean() if baseline else ()
        result = executed(done, started_at, "scenario", notes=cleanliness(done, unclean))
        return self._places.with_core_dumps(result, tasks)

    def close(self) -> None:
        """Nothing is kept."""


def executed(
    done: Supervised, started_at: str, isolation: Isolation, *, notes: tuple[NoteEvidence, ...] = ()
) -> Executed:
    """Turn what the supervisor saw into the attempt's record."""
    return Executed(
        ranks=done.ranks,
        journals=done.journals,
        started_at=started_at,
        duration_s=done.duration_s,
        isolation=isolation,
        notes=notes,
        cut_short=INTERRUPTED if done.interrupted else done.lost,
        lost=done.lost,
    )


def cleanliness(done: Supervised, unclean: Sequence[str] = ()) -> tuple[NoteEvidence, ...]:
    """Return notes on what was seen of an attempt from outside and what it left behind."""
    stuck = [
        NoteEvidence(topic="stuck process", text=f"{process} survived SIGKILL")
        for process in done.stuck
    ]
    found = (NoteEvidence(topic="unclean GPU", text=text) for text in unclean)
    return (*done.notes, *stuck, *found)
