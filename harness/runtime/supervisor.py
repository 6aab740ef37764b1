"""Watches the rank processes of one attempt from start to a clean end."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.record.evidence import NoteEvidence
from harness.record.result import SCENARIO_PHASES, Phase, RankOutcome
from harness.runtime import pyspy
from harness.runtime.cgroup import OomWatch, with_oom_kills
from harness.runtime.journal import OK, JournalContent, PhaseTail, read_journal
from harness.runtime.limits import GRACE_S, KILL_S, POLL_S, STACKS_S, PhaseLimits
from harness.runtime.outcome import rank_outcome
from harness.runtime.processes import (
    RankProcess,
    kill_sessions,
    process_state,
    send_signal,
    wait_ended,
)
from harness.runtime.task import Task

_UNUSUAL_STATES = "TtD"
"""Stopped, traced, or in an uninterruptible wait."""


class Watch:
    """One rank process with what is known of it."""

    def __init__(self, task: Task, process: RankProcess, started_s: float) -> None:
        """Start watching a process that was started at ``started_s`` (monotonic)."""
        self.task = task
        self.process = process
        self.started_s = started_s
        self.tail = PhaseTail(task.journal)
        self.status: int | None = None
        self.ended_s: float | None = None
        self.killed = False
        self.deadline: Phase | None = None
        self.state: str | None = None

    @property
    def running(self) -> bool:
        """True until its end was seen."""
        return self.status is None

    @property
    def ended_badly(self) -> bool:
        """True when it ended with a status, or without a closing line behind our back."""
        return not self.running and (self.status != 0 or self.tail.status != OK)

    def look(self, now: float) -> None:
        """Take in exit status and journal."""
        if self.running:
            self.status = self.process.poll()
            self.ended_s = None if self.running else now
            # Behind the status: what an ended process wrote last is then seen for certain.
            self.tail.refresh()

    def last_phase(self) -> tuple[Phase, float]:
        """Return the phase it is in and when that began; ``start`` before its first line."""
        return self.tail.begins[-1] if self.tail.begins else (Phase.START, self.started_s)

    def left_s(self, now: float, limits: PhaseLimits) -> float:
        """Return what is left of the budget that the present phase draws on, in seconds."""
        phase, begin = self.last_phase()
        spent = now - begin
        if phase in SCENARIO_PHASES:
            times = [time_s for _, time_s in self.tail.begins] + [now]
            spans = zip(self.tail.begins, times[1:], strict=True)
            spent = sum(end - begin for (p, begin), end in spans if p in SCENARIO_PHASES)
        return limits.of(phase) - spent


@dataclass(frozen=True, kw_only=True, slots=True)
class Supervised:
    """What an attempt's processes left.

    Attributes:
        started_s: Monotonic time at which the first process was started.
        duration_s: From there to the last end.
        stuck: Processes that survived SIGKILL.
        interrupted: The run was asked to stop; the outcomes say nothing about the scenario.
        notes: What was seen of stuck processes from outside.
    """

    ranks: tuple[RankOutcome, ...]
    journals: tuple[JournalContent, ...]
    duration_s: float
    stuck: tuple[int, ...] = ()
    interrupted: bool = False
    notes: tuple[NoteEvidence, ...] = ()

    @property
    def clean(self) -> bool:
        """True when every rank wrote its closing line and ended well."""
        return all(rank.completed and rank.exit_code == 0 for rank in self.ranks)


@dataclass(kw_only=True)
class Supervisor:
    """Runs the processes of attempts one after the other.

    Attributes:
        stop_requested: Asked several times a second; True ends the attempt at once.
        heartbeat: Called with (phase by rank, seconds since start) while ranks run.
        run_folder: Stack files are named relative to it.
    """

    run_folder: Path
    stop_requested: Callable[[], bool] = lambda: False
    heartbeat: Callable[[Mapping[int, Phase], float], None] = lambda phases, since_s: None
    _watches: list[Watch] = field(default_factory=list)
    _notes: tuple[NoteEvidence, ...] = ()

    def run(
        self, tasks: Sequence[Task], start: Callable[[Task], RankProcess], *, keep: bool = False
    ) -> Supervised:
        """Start one process per task, see them to their ends and read what they left.

        Args:
            tasks: One per rank.
            start: Starts a task; called in the order of the ranks.
            keep: Leave the processes alone when all of them finished their task well. Otherwise
                none of the attempt is running when this returns, except those in ``stuck``.
        """
        started_s = time.monotonic()
        self._watches, self._notes = [], ()
        memory = OomWatch()
        try:
            for task in tasks:
                self._watches.append(Watch(task, start(task), time.monotonic()))
            interrupted = not self._watch(tasks[0].limits, started_s)
        except BaseException:
            self._end_all()
            raise
        well = all(w.status == 0 and w.tail.status == OK for w in self._watches)
        stuck = () if keep and well else self._end_all()
        duration_s = time.monotonic() - started_s
        journals = tuple(
            read_journal(w.task.journal, global_rank=w.task.global_rank) for w in self._watches
        )
        ranks = tuple(
            rank_outcome(watch, content, self.run_folder)
            for watch, content in zip(self._watches, journals, strict=True)
        )
        return Supervised(
            ranks=with_oom_kills(ranks, memory.kills()),
            journals=journals,
            duration_s=duration_s,
            stuck=stuck,
            interrupted=interrupted,
            notes=self._notes,
        )

    def _watch(self, limits: PhaseLimits, started_s: float) -> bool:
        """Wait until all ranks ended, one failed, or a limit ran out; False when told to stop."""
        grace_ends_s: float | None = None
        while True:
            now = time.monotonic()
            for watch in self._watches:
                watch.look(now)
            running = [watch for watch in self._watches if watch.running]
            # First: what asks the run to stop may have ended the ranks as well.
            if self.stop_requested():
                return False
            if not running:
                return True
            if grace_ends_s is None and any(watch.ended_badly for watch in self._watches):
                grace_ends_s = now + GRACE_S
            if grace_ends_s is not None and now >= grace_ends_s:
                self._dump_stacks(running)
                return True
            left_s = min(watch.left_s(now, limits) for watch in running)
            if left_s <= 0:
                self._pass_deadline(running, limits)
                return True
            self.heartbeat(
                {w.task.global_rank: w.last_phase()[0] for w in running}, now - started_s
            )
            _wait([watch.process for watch in running], min(left_s, POLL_S))

    def _pass_deadline(self, running: Sequence[Watch], limits: PhaseLimits) -> None:
        now = time.monotonic()
        for watch in running:
            # Peers of a hanging rank started their budgets within moments of it.
            if watch.left_s(now, limits) <= GRACE_S:
                watch.deadline = watch.last_phase()[0]
        self._dump_stacks(running)
        targets = [
            pyspy.Target(
                global_rank=watch.task.global_rank,
                pid=watch.process.pid,
                file=Path(watch.task.native_stacks),
                stopped=watch.state in ("T", "t"),
            )
            for watch in running
        ]
        self._notes += pyspy.dump(targets, self.run_folder)

    @staticmethod
    def _dump_stacks(running: Sequence[Watch]) -> None:
        """Ask for Python stacks and note who cannot answer."""
        for watch in running:
            state = process_state(watch.process.pid)
            watch.state = state if state and state in _UNUSUAL_STATES else None
            if watch.tail.begins:  # before its first line the handler may not be there yet
                send_signal(watch.process.pid, signal.SIGUSR1)
        time.sleep(STACKS_S)

    def _end_all(self) -> tuple[int, ...]:
        """Kill what still runs and reap everything."""
        now = time.monotonic()
        for watch in self._watches:
            watch.look(now)
            watch.killed = watch.running
        processes = [watch.process for watch in self._watches]
        alive = [process.pid for process in processes if process.alive()]
        ended = [process.pid for process in processes if process.pid not in alive]
        stuck = kill_sessions(alive, ended, KILL_S)
        wait_ended(processes, 1.0 if stuck else KILL_S)
        for watch in self._watches:
            watch.look(time.monotonic())
            watch.process.close()
        return stuck


def _wait(processes: Sequence[RankProcess], timeout_s: float) -> None:
    poller = select.poll()
    for process in processes:
        for number in process.filenos():
            poller.register(number, select.POLLIN)
    poller.poll(max(1, round(timeout_s * 1000)))
