"""What local rank 0 of every node but the leader's does: carry out orders for rank processes."""

from __future__ import annotations

import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from harness.production.locate import BuildError, find_build
from harness.record.codec import dumps
from harness.runtime.address import address_file, withdraw
from harness.runtime.control import Channel, ControlServer, Message
from harness.runtime.devices import num_gpus
from harness.runtime.fingerprint import collect
from harness.runtime.hub import boot_id
from harness.runtime.limits import KILL_S
from harness.runtime.link import CONNECT_S, join_run
from harness.runtime.nodes import is_operation, perform
from harness.runtime.processes import RankProcess, kill_sessions
from harness.runtime.spawner import SpawnerError
from harness.runtime.starters import NodeStarter, Starter, WorkerStarter
from harness.runtime.stop import StopRequest
from harness.runtime.world import World

LOOK_S = 0.2
"""Longest sleep between two looks at signals."""
STOP_S = 20.0
"""For the leader to end the run after this node asked it to."""


class _StoppedError(Exception):
    """This node was asked to stop before the run began."""


class LeaderGoneError(Exception):
    """The connection to the leader closed before it said how the run ended."""

    def __init__(self, run: Path | None) -> None:
        """Keep the run folder, where there is one already."""
        super().__init__("the leader of the run is gone")
        self.run = run


def node_name(world: World) -> str:
    """Return this node, for messages."""
    return f"node {world.group_rank} ({socket.gethostname()})"


def follow_leader(
    world: World,
    out: Path,
    server: ControlServer,
    stop: StopRequest,
    *,
    limit_s: float = CONNECT_S,
) -> int:
    """Join the run and serve it to its end; return the run's exit code.

    Args:
        world: This worker's place.
        out: Folder in which the leader publishes its address.
        server: Control socket of this node, where its other workers wait.
        stop: Set by a signal to this worker.
        limit_s: How long to look for the leader.

    Raises:
        LinkError: if the leader cannot be found.
        LeaderGoneError: if it vanished; no rank process is left then.
    """

    def check() -> None:
        if stop():
            raise _StoppedError

    try:
        hello = own_hello(world)
        file = address_file(out, world)
        joined = join_run(file, hello, who=node_name(world), limit_s=limit_s, check=check)
    except _StoppedError:
        return int(stop.exit_code)
    try:
        return NodeFollower(joined.channel, server, stop).serve()
    except LeaderGoneError:
        withdraw(file, joined.address)
        raise


def own_hello(world: World) -> Message:
    """Return what a node tells its leader of itself."""
    return {
        "node": world.group_rank,
        "host": socket.gethostname(),
        "boot_id": boot_id(),
        "local_world_size": world.local_world_size,
        "num_gpus": num_gpus(),
        "num_cpus": len(os.sched_getaffinity(0)),
    }


class NodeFollower:
    """Starts, watches and ends the rank processes of its node on the leader's orders."""

    def __init__(self, link: Channel, server: ControlServer, stop: StopRequest) -> None:
        self._link = link
        self._server = server
        self._stop = stop
        self._starter: Starter | None = None
        self._run: Path | None = None
        self._number = 0
        self._children: dict[int, RankProcess] = {}
        self._orders: dict[str, Callable[[Message], Message]] = {
            "clock": lambda order: {"t": time.monotonic()},
            "prepare": self._prepare,
            "start": self._start,
            "check": self._check,
        }

    def serve(self) -> int:
        """Carry out orders until the leader says how the run ended; return its exit code.

        Raises:
            LeaderGoneError: if the connection closes before.
        """
        try:
            return self._serve()
        finally:
            self._end_children()
            self._link.close()

    def _serve(self) -> int:
        asked_s: float | None = None
        while True:
            numbers = [n for child in self._children.values() for n in child.filenos()]
            select.select([self._link.fileno(), *numbers], [], [], LOOK_S)
            self._report_ends()
            while (order := self._receive()) is not None:
                if order["do"] == "end":
                    return int(order["code"])
                self._link.send({**self._carry_out(order), "re": order["n"]})
            if self._link.closed:
                raise LeaderGoneError(self._run)
            if self._stop() and asked_s is None:
                asked_s = time.monotonic()
                self._link.send({"stop": int(self._stop.exit_code) - 128})
            if asked_s is not None and time.monotonic() - asked_s > STOP_S:
                return int(self._stop.exit_code)

    def _receive(self) -> Message | None:
        return self._link.receive(0.0)

    def _carry_out(self, order: Message) -> Message:
        try:
            if is_operation(order):
                return perform(order)
            return self._orders[order["do"]](order)
        except (SpawnerError, BuildError) as error:
            return {"error": str(error)}
        except Exception:  # noqa: BLE001 (the leader decides what becomes of the run)
            traceback.print_exc()
            return {"error": traceback.format_exc()}

    def _prepare(self, order: Message) -> Message:
        """Do the imports, if this node sees the run folder."""
        run = Path(order["run"])
        if not run.is_dir():
            return {
                "error": f"it does not see the run folder {run}; expected --out on a file system "
                "that all nodes share, at the same path"
            }
        self._run = run
        if order["hide_gpus"]:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        if order["supervision"] == "node":
            self._starter = NodeStarter(paths=order["paths"])
        else:
            self._starter = WorkerStarter(self._server, order["workers"], paths=order["paths"])
        facts = self._starter.prepare(self._check_link)
        if facts.problem is not None:
            return {"error": f"the production modules cannot be imported:\n{facts.problem}"}
        return {"environment": dumps(collect(find_build(order["megatron"])))}

    def _check_link(self) -> None:
        """Stop waiting for imports when the leader is gone or this node shall stop."""
        gone = bool(select.select([self._link.fileno()], [], [], 0.0)[0])
        if self._stop() or gone:
            raise SpawnerError("the imports were given up, since the run ends")

    def _start(self, order: Message) -> Message:
        assert self._starter is not None, "the leader prepares a node before it starts processes"
        child = self._starter.start(order["entry"], order["request"], order["local_rank"])
        self._number += 1
        self._children[self._number] = child
        return {"id": self._number, "pid": child.pid}

    def _check(self, order: Message) -> Message:
        if self._starter is not None:
            self._starter.check()
        return {}

    def _report_ends(self) -> None:
        for number, child in list(self._children.items()):
            status = child.poll()
            if status is not None:
                self._link.send({"ended": number, "status": status, "at": time.monotonic()})
                child.close()
                del self._children[number]

    def _end_children(self) -> None:
        pids = [child.pid for child in self._children.values() if child.alive()]
        if pids:
            kill_sessions(pids, [], KILL_S)


def say(text: str) -> None:
    """Print one line of this node's own."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201
