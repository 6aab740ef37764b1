"""Isolation ``none``: scenarios run in the launcher's own workers, for sanitizers and profilers.

Nobody supervises: a crash ends the run, and a hang lasts until the collectives' time-out or the
launcher's patience. Each rank's stacks are still written near its limits.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import replace

from harness.record.evidence import NoteEvidence
from harness.record.result import RankOutcome
from harness.runtime.attempts import INTERRUPTED, Executed, Places, utc_now
from harness.runtime.child import run_task
from harness.runtime.control import Channel, ControlServer
from harness.runtime.journal import JournalContent, read_journal
from harness.runtime.limits import JOIN_S
from harness.runtime.plan import Planned
from harness.runtime.spawner import SpawnerError
from harness.runtime.stacks import stack_file
from harness.runtime.stop import RunStopped, StopRequest
from harness.runtime.task import Task

_NOTE = NoteEvidence(
    topic="isolation",
    text="ran in the launcher's workers, without supervision; process state carried over from "
    "scenario to scenario",
)


class InlineRunner:
    """Runs rank 0's task here and the others' in the other workers."""

    def __init__(
        self, places: Places, server: ControlServer, num_workers: int, stop: StopRequest
    ) -> None:
        """Ask every other worker to take tasks.

        Raises:
            SpawnerError: if a worker does not come.
        """
        self._places = places
        self._stop = stop
        self._channels: dict[int, Channel] = {}
        for local_rank in range(1, num_workers):
            channel = server.expect({"worker": local_rank}, JOIN_S)
            if channel is None:
                raise SpawnerError(
                    f"worker {local_rank} did not come within {JOIN_S:.0f} s; see its own messages "
                    "above, or start again on a machine that is less busy"
                )
            channel.send({"do": "run"})
            self._channels[local_rank] = channel

    def run(self, item: Planned, attempt: int) -> Executed:
        """Execute one attempt in the workers."""
        tasks = self._places.tasks(item, attempt, "none")
        started_at, started_s = utc_now(), time.monotonic()
        for task in tasks[1:]:
            self._channels[task.local_rank].send({"task": task.to_json()})
        answers: dict[int, bool | None] = dict.fromkeys(range(len(tasks)))
        with contextlib.suppress(RunStopped), self._stop.interrupting():
            answers[0] = run_task(tasks[0], last=False)
            limit = time.monotonic() + tasks[0].limits.collective_s
            for task in tasks[1:]:
                answers[task.local_rank] = self._answer(task.local_rank, limit)
        journals = tuple(read_journal(t.journal, global_rank=t.global_rank) for t in tasks)
        ranks = tuple(
            _outcome(task, content, answers[task.local_rank], self._places)
            for task, content in zip(tasks, journals, strict=True)
        )
        ranks = _with_victims(ranks)
        bad = [rank.global_rank for rank in ranks if not rank.completed]
        cut_short = INTERRUPTED if self._stop() and not _raised(ranks) else None
        return Executed(
            ranks=ranks,
            journals=journals,
            started_at=started_at,
            duration_s=time.monotonic() - started_s,
            isolation="none",
            notes=(_NOTE,),
            cut_short=cut_short,
            lost=f"isolation none: rank {bad[0]} of {item.scenario.id} failed"
            if bad and cut_short is None
            else None,
        )

    def _answer(self, local_rank: int, limit: float) -> bool | None:
        message = self._channels[local_rank].receive(max(0.0, limit - time.monotonic()))
        return None if message is None else bool(message["done"])

    def close(self) -> None:
        """Let the other workers end."""
        for channel in self._channels.values():
            channel.close()


def _outcome(
    task: Task, content: JournalContent, answer: bool | None, places: Places
) -> RankOutcome:
    return RankOutcome(
        global_rank=task.global_rank,
        host=content.host or socket.gethostname(),
        pid=content.pid,
        exit_code=None if answer is None else int(not answer),
        last_phase=content.last_phase,
        last_line=content.last_line,
        completed=content.completed,
        exception=content.exception,
        stacks=stack_file(task.stacks, places.folder.path),
        ended_s=content.exception_s if content.exception_s is not None else content.last_s,
        phases=content.phases,
        last_collective=content.collectives[-1] if content.collectives else None,
    )


def _raised(ranks: tuple[RankOutcome, ...]) -> bool:
    """Tell whether some rank raised for a reason of its own."""
    return any(r.exception is not None and not r.exception.in_collective for r in ranks)


def _with_victims(ranks: tuple[RankOutcome, ...]) -> tuple[RankOutcome, ...]:
    """Mark ranks that vanished after another one raised: the launcher took them down."""
    if not _raised(ranks):
        return ranks
    return tuple(
        replace(rank, ended_by_harness=True)
        if not rank.completed and rank.exception is None
        else rank
        for rank in ranks
    )
