"""Isolation ``none``: scenarios run in the launcher's own workers, for sanitizers and profilers.

Nobody supervises: a crash ends the run, and a hang lasts until the collectives' time-out or the
launcher's patience. Each rank's stacks are still written near its limits.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import replace

from harness.record.evidence import NoteEvidence
from harness.record.result import RankOutcome
from harness.runtime.attempts import Executed, Places, utc_now
from harness.runtime.child import run_task
from harness.runtime.control import Channel, ControlServer
from harness.runtime.journal import JournalContent, read_journal
from harness.runtime.limits import JOIN_S
from harness.runtime.plan import Planned
from harness.runtime.spawner import SpawnerError
from harness.runtime.stacks import stack_file
from harness.runtime.task import Task

_NOTE = NoteEvidence(
    topic="isolation",
    text="ran in the launcher's workers, without supervision; process state carried over from "
    "scenario to scenario",
)


class InlineRunner:
    """Runs rank 0's task here and the others' in the other workers."""

    def __init__(self, places: Places, server: ControlServer, num_workers: int) -> None:
        """Ask every other worker to take tasks.

        Raises:
            SpawnerError: if a worker does not come.
        """
        self._places = places
        self._channels: dict[int, Channel] = {}
        for local_rank in range(1, num_workers):
            channel = server.expect({"worker": local_rank}, JOIN_S)
            if channel is None:
                raise SpawnerError(f"worker {local_rank} did not come within {JOIN_S:.0f} s")
            channel.send({"do": "run"})
            self._channels[local_rank] = channel

    def run(self, item: Planned, attempt: int) -> Executed:
        """Execute one attempt in the workers."""
        tasks = self._places.tasks(item, attempt, "none")
        started_at, started_s = utc_now(), time.monotonic()
        for task in tasks[1:]:
            self._channels[task.local_rank].send({"task": task.to_json()})
        own = run_task(tasks[0], last=False)
        limit = time.monotonic() + tasks[0].limits.collective_s
        answers = {task.local_rank: self._answer(task.local_rank, limit) for task in tasks[1:]}
        journals = tuple(read_journal(t.journal, global_rank=t.global_rank) for t in tasks)
        ranks = tuple(
            _outcome(task, content, {**answers, 0: own}, self._places)
            for task, content in zip(tasks, journals, strict=True)
        )
        ranks = _with_victims(ranks)
        bad = [rank.global_rank for rank in ranks if not rank.completed]
        return Executed(
            ranks=ranks,
            journals=journals,
            started_at=started_at,
            duration_s=time.monotonic() - started_s,
            isolation="none",
            notes=(_NOTE,),
            lost=f"isolation none: rank {bad[0]} of {item.scenario.id} failed" if bad else None,
        )

    def _answer(self, local_rank: int, limit: float) -> bool | None:
        message = self._channels[local_rank].receive(max(0.0, limit - time.monotonic()))
        return None if message is None else bool(message["done"])

    def close(self) -> None:
        """Let the other workers end."""
        for channel in self._channels.values():
            channel.close()


def _outcome(
    task: Task, content: JournalContent, answers: Mapping[int, bool | None], places: Places
) -> RankOutcome:
    answer = answers[task.local_rank]
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
    )


def _with_victims(ranks: tuple[RankOutcome, ...]) -> tuple[RankOutcome, ...]:
    """Mark ranks that vanished after another one raised: the launcher took them down."""
    if not any(r.exception is not None and not r.exception.in_collective for r in ranks):
        return ranks
    return tuple(
        replace(rank, ended_by_harness=True)
        if not rank.completed and rank.exception is None
        else rank
        for rank in ranks
    )
