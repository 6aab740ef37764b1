"""Isolation ``group``: compatible scenarios share one generation of processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from harness.runtime.attempts import Executed, Places, cleanliness, drop_store, executed, utc_now
from harness.runtime.control import Channel, Meeting
from harness.runtime.limits import JOIN_S, KILL_S
from harness.runtime.nodes import GpuBaselines, Node
from harness.runtime.plan import Planned
from harness.runtime.processes import RankProcess, wait_ended
from harness.runtime.starters import Starter
from harness.runtime.supervisor import Supervisor, end_sessions
from harness.runtime.task import Task

RETIRE_S = 5.0
"""For members to end by themselves once their channels are closed."""


class Member:
    """One process of a generation, seen as running one task after the other."""

    def __init__(self, process: RankProcess, channel: Channel | None) -> None:
        """Wrap a started process; without a channel it never joined, and its end tells why."""
        self._process = process
        self.channel = channel
        self._done: bool | None = None
        self.pid = process.pid

    @property
    def node(self) -> Node:
        """Node of its process."""
        return self._process.node

    @property
    def lost(self) -> str | None:
        """Why nobody knows how its process ended."""
        return self._process.lost

    @property
    def ended_s(self) -> float | None:
        """When the end of its process was seen."""
        return self._process.ended_s

    def give(self, task: Task) -> Member:
        """Hand over the next task and follow it."""
        self._done = None
        if self.channel is not None:
            self.channel.send({"task": task.to_json()})
        return self

    def filenos(self) -> tuple[int, ...]:
        """Return the descriptors of channel and process."""
        joined = self.channel is not None and not self.channel.closed and self._done is None
        own = (self.channel.fileno(),) if joined and self.channel is not None else ()
        return (*own, *self._process.filenos())

    def poll(self) -> int | None:
        """Return 0 when the task is done, else the exit code of an ended process."""
        if self._done is None and self.channel is not None:
            message = self.channel.receive(0.0)
            self._done = None if message is None else bool(message["done"])
        # A member that failed its task ends at once, with the status that counts.
        return 0 if self._done else self._process.poll()

    def alive(self) -> bool:
        """Tell whether the process is there."""
        return self._process.alive()

    def close(self) -> None:
        """Release channel and process."""
        if self.channel is not None:
            self.channel.close()
        self._process.close()


class SharedRunner:
    """Keeps a generation for as long as scenarios fit it and none faults."""

    def __init__(
        self, places: Places, starter: Starter, supervisor: Supervisor, server: Meeting
    ) -> None:
        self._places = places
        self._starter = starter
        self._supervisor = supervisor
        self._server = server
        self._number = 0
        self._key = ""
        self._members: list[Member] = []
        self._store: Sequence[Task] = ()
        self._before: list[Planned] = []
        self._baseline: GpuBaselines | None = None

    def run(self, item: Planned, attempt: int) -> Executed:
        """Execute one attempt in the present generation, or in a new one where it does not fit."""
        if not self._members or item.group_key != self._key:
            self.close()
            on_gpu = item.device == "cuda"
            self._baseline = GpuBaselines(self._supervisor.nodes) if on_gpu else None
            self._key = item.group_key
        tasks = self._places.tasks(item, attempt, "group")
        started_at = utc_now()
        if not self._members:
            self._store = tasks
            self._begin(tasks)
        done = self._supervisor.run(
            tasks, lambda task: self._members[task.global_rank].give(task), keep=True
        )
        before = tuple(self._before)
        self._before.append(item)
        if done.clean:
            return executed(done, started_at, "group")
        # The supervisor has ended every member already.
        self._forget()
        if not done.interrupted:
            self._starter.check()
        notes = cleanliness(done, self._baseline.unclean() if self._baseline else ())
        result = executed(done, started_at, "group", notes=notes)
        return replace(self._places.with_core_dumps(result, tasks), shared_with=before)

    def _begin(self, tasks: Sequence[Task]) -> None:
        self._number += 1
        names = [f"{self._number}-{task.global_rank}" for task in tasks]
        processes = [
            self._starter.start("member", self._server.invitation(name, task.worker), task.worker)
            for name, task in zip(names, tasks, strict=True)
        ]
        self._members = [
            Member(process, self._join(name, process))
            for name, process in zip(names, processes, strict=True)
        ]

    def _join(self, name: str, process: RankProcess) -> Channel | None:
        limit = time.monotonic() + JOIN_S
        while time.monotonic() < limit and process.alive():
            channel = self._server.expect({"member": name}, 0.2)
            if channel is not None:
                return channel
        return None

    def close(self) -> None:
        """Retire the generation: members end when their channels close."""
        for member in self._members:
            if member.channel is not None:
                member.channel.close()
        if not wait_ended(self._members, RETIRE_S):
            end_sessions(self._members, KILL_S)
            wait_ended(self._members, KILL_S)
        for member in self._members:
            member.close()
        self._forget()

    def _forget(self) -> None:
        if self._store:
            drop_store(self._store)
        self._members, self._before, self._store = [], [], ()
