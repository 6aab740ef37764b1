"""Watches the rank processes of one attempt from start to a clean end."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.record.evidence import NoteEvidence
from harness.record.phase import SCENARIO_PHASES, Phase
from harness.record.result import RankOutcome
from harness.runtime import pyspy
from harness.runtime.cgroup import OomWatch, with_oom_kills
from harness.runtime.control import Message
from harness.runtime.ends import note_end
from harness.runtime.journal import OK, JournalContent, PhaseTail, read_journal
from harness.runtime.limits import GRACE_S, KILL_S, POLL_S, STACKS_S, PhaseLimits
from harness.runtime.nodes import (
    ASK_S,
    LOCAL,
    Node,
    kill_order,
    look_order,
    memory_kills,
    notes_of,
    on_each,
    stacks_order,
)
from harness.runtime.outcome import rank_outcome
from harness.runtime.processes import RankProcess, wait_ended
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
            if not self.running:
                self.ended_s = now if self.process.ended_s is None else self.process.ended_s
                if self.process.node is not LOCAL:
                    # Another machine made the journal: have this one ask the file server for it.
                    with contextlib.suppress(OSError):
                        os.listdir(self.task.folder)
            # Behind the status: what an ended process wrote last is then seen for certain.
            self.tail.refresh()
            if not self.running:
                # A full disk shows again when the attempt's last line is due.
                with contextlib.suppress(OSError):
                    note_end(self)

    def last_phase(self) -> tuple[Phase, float]:
        """Return the phase it is in and when that began; ``start`` before its first line."""
        begins = self._begins()
        return begins[-1] if begins else (Phase.START, self.started_s)

    def _begins(self) -> list[tuple[Phase, float]]:
        """Phases with the times of their begin, on the clock of this process."""
        offset_s = self.process.node.offset_s
        return [(phase, begin + offset_s) for phase, begin in self.tail.begins]

    def left_s(self, now: float, limits: PhaseLimits) -> float:
        """Return what is left of the budget that the present phase draws on, in seconds."""
        phase, begin = self.last_phase()
        spent = now - begin
        if phase in SCENARIO_PHASES:
            begins = self._begins()
            times = [time_s for _, time_s in begins] + [now]
            spans = zip(begins, times[1:], strict=True)
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
        lost: Which node went out of reach while it ran, None when all stayed.
        notes: What was seen of stuck processes from outside.
    """

    ranks: tuple[RankOutcome, ...]
    journals: tuple[JournalContent, ...]
    duration_s: float
    stuck: tuple[str, ...] = ()
    interrupted: bool = False
    lost: str | None = None
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
        nodes: Where rank processes may run.
    """

    run_folder: Path
    nodes: Sequence[Node] = (LOCAL,)
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
        memory = {node: OomWatch(read=memory_kills(node)) for node in self.nodes}
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
        kills = {node: 0 if well else watch.kills() for node, watch in memory.items()}
        ranks = [
            rank_outcome(watch, content, self.run_folder)
            for watch, content in zip(self._watches, journals, strict=True)
        ]
        return Supervised(
            ranks=tuple(
                with_oom_kills([rank], kills.get(watch.process.node, 0))[0]
                for watch, rank in zip(self._watches, ranks, strict=True)
            ),
            journals=journals,
            duration_s=duration_s,
            stuck=stuck,
            interrupted=interrupted,
            lost=next((w.process.lost for w in self._watches if w.process.lost), None),
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
        orders = {
            node: stacks_order([_target(watch) for watch in watches], self.run_folder)
            for node, watches in _by_node(running).items()
        }
        for answer in on_each(orders, pyspy.DUMP_S + ASK_S).values():
            self._notes += notes_of(answer)

    @staticmethod
    def _dump_stacks(running: Sequence[Watch]) -> None:
        """Ask for Python stacks and note who cannot answer."""
        nodes = _by_node(running)
        orders = {
            node: look_order(
                [watch.process.pid for watch in watches],
                # Before its first line the handler may not be there yet.
                [watch.process.pid for watch in watches if watch.tail.begins],
            )
            for node, watches in nodes.items()
        }
        for node, answer in on_each(orders, ASK_S).items():
            for watch in nodes[node]:
                state = answer.get("states", {}).get(str(watch.process.pid))
                watch.state = state if state and state in _UNUSUAL_STATES else None
        time.sleep(STACKS_S)

    def _end_all(self) -> tuple[str, ...]:
        """Kill what still runs and reap everything."""
        now = time.monotonic()
        for watch in self._watches:
            watch.look(now)
            watch.killed = watch.running
        processes = [watch.process for watch in self._watches]
        stuck = end_sessions(processes, KILL_S)
        wait_ended(processes, 1.0 if stuck else KILL_S)
        for watch in self._watches:
            watch.look(time.monotonic())
            watch.process.close()
        return stuck


def end_sessions(processes: Sequence[RankProcess], limit_s: float) -> tuple[str, ...]:
    """Kill processes with everything in their sessions, on all nodes at the same time.

    Returns:
        Processes that are still there, in words.
    """
    orders: dict[Node, Message] = {}
    for node in {process.node for process in processes}:
        here = [process for process in processes if process.node is node]
        alive = [process.pid for process in here if process.alive()]
        ended = [process.pid for process in here if process.pid not in alive]
        orders[node] = kill_order(alive, ended, limit_s)
    return tuple(
        f"process {pid}" + ("" if node is LOCAL else f" on node {node.index} ({node.host})")
        for node, answer in on_each(orders, limit_s + ASK_S).items()
        for pid in answer.get("left", ())
    )


def _by_node(watches: Sequence[Watch]) -> dict[Node, list[Watch]]:
    found: dict[Node, list[Watch]] = {}
    for watch in watches:
        found.setdefault(watch.process.node, []).append(watch)
    return found


def _target(watch: Watch) -> pyspy.Target:
    return pyspy.Target(
        global_rank=watch.task.global_rank,
        pid=watch.process.pid,
        file=Path(watch.task.native_stacks),
        stopped=watch.state in ("T", "t"),
    )


def _wait(processes: Sequence[RankProcess], timeout_s: float) -> None:
    poller = select.poll()
    for process in processes:
        for number in process.filenos():
            poller.register(number, select.POLLIN)
    poller.poll(max(1, round(timeout_s * 1000)))
