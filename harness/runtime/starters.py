"""Where rank processes are started from: the node's leader, or each worker for itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NoReturn, Protocol

from harness.runtime import child
from harness.runtime.control import Channel, ControlServer
from harness.runtime.limits import JOIN_S, PRELOAD_S
from harness.runtime.nodes import LOCAL, Node
from harness.runtime.processes import RankProcess
from harness.runtime.spawner import Spawner, SpawnerError, SpawnFacts

Entry = Literal["single", "member"]

ENTRIES: dict[Entry, Callable[[str, int], NoReturn]] = {
    "single": child.run_single,
    "member": child.run_member,
}
"""Main functions of a rank process: one task, or tasks that the leader sends."""


class Starter(Protocol):
    """Starts one process for a worker: a local rank of this node, or a rank over all nodes."""

    def prepare(self, check: Callable[[], None]) -> SpawnFacts:
        """Do what is done once per run: the imports.

        Raises:
            SpawnerError: if rank processes cannot be started.
        """

    def start(self, entry: Entry, request: str, local_rank: int) -> RankProcess:
        """Start a process and return at once."""

    def check(self) -> None:
        """See that what starts processes is there, after an attempt that did not end well.

        Raises:
            SpawnerError: if it is not; then no exit code of the attempt counts.
        """


class NodeStarter:
    """CPU ranks: the leader's one forkserver forks for every local rank."""

    def __init__(self, *, paths: Sequence[str] = ()) -> None:
        self._spawner = Spawner(cuda=False, paths=paths)

    def prepare(self, check: Callable[[], None]) -> SpawnFacts:
        """Start and probe the forkserver."""
        return self._spawner.prepare(check)

    def start(self, entry: Entry, request: str, local_rank: int) -> RankProcess:
        """Fork a child."""
        return self._spawner.start(ENTRIES[entry], request)

    def check(self) -> None:
        """See that the forkserver is there."""
        self._spawner.check()


class WorkerStarter:
    """CUDA ranks: each worker starts its own child, on its own GPU, CPU set and cgroup.

    The leader starts local rank 0's; the others do so when told over their channels.
    """

    def __init__(self, server: ControlServer, num_workers: int, *, paths: Sequence[str]) -> None:
        self._server = server
        self._num_workers = num_workers
        self._paths = tuple(paths)
        self._own = Spawner(cuda=True, paths=paths)
        self._channels: dict[int, Channel] = {}

    def prepare(self, check: Callable[[], None]) -> SpawnFacts:
        """Have every worker start its forkserver, all at the same time."""
        for local_rank in range(1, self._num_workers):
            channel = self._server.expect({"worker": local_rank}, JOIN_S)
            if channel is None:
                raise SpawnerError(
                    f"worker {local_rank} did not come within {JOIN_S:.0f} s; see its own messages "
                    "above, or start again on a machine that is less busy"
                )
            channel.send({"do": "supervise", "paths": list(self._paths)})
            self._channels[local_rank] = channel
        facts = self._own.prepare(check)
        for local_rank, channel in self._channels.items():
            answer = channel.receive(PRELOAD_S)
            if answer is None or answer["error"]:
                reason = answer["error"] if answer else "it ended or gave no answer"
                raise SpawnerError(f"worker {local_rank} cannot start rank processes: {reason}")
        return facts

    def start(self, entry: Entry, request: str, local_rank: int) -> RankProcess:
        """Start a process here or in the worker of ``local_rank``."""
        if local_rank == 0:
            return self._own.start(ENTRIES[entry], request)
        channel = self._channels[local_rank]
        channel.send({"do": "start", "entry": entry, "request": request})
        answer = channel.receive(JOIN_S)
        if answer is None:
            raise SpawnerError(f"worker {local_rank} ended, or did not start its child in time")
        return RemoteChild(channel, answer["started"])

    def check(self) -> None:
        """See that this worker's forkserver and the other workers are there."""
        self._own.check()
        for local_rank, channel in self._channels.items():
            if channel.closed:
                raise SpawnerError(f"worker {local_rank} ended, and its rank process with it")


class RemoteChild:
    """A rank process of another worker of this node; that worker reports its end."""

    node: Node = LOCAL
    lost: str | None = None
    ended_s: float | None = None

    def __init__(self, channel: Channel, pid: int) -> None:
        """Follow the child ``pid`` of the worker behind ``channel``."""
        self._channel = channel
        self._exit: int | None = None
        self.pid = pid

    def filenos(self) -> tuple[int, ...]:
        """Return the channel's descriptor."""
        return (self._channel.fileno(),) if self._exit is None else ()

    def poll(self) -> int | None:
        """Return the exit code; 255 when the worker itself is gone, and its child with it."""
        if self._exit is None:
            message = self._channel.receive(0.0)
            if message is not None:
                self._exit = int(message["ended"])
            elif self._channel.closed:
                self._exit = 255
        return self._exit

    def alive(self) -> bool:
        """Tell whether the end was not reported yet."""
        return self.poll() is None

    def close(self) -> None:
        """Nothing to release: the channel stays for the next child."""
