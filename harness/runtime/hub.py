"""The leader's connections to the other nodes of a run, and rank processes started through them."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from harness.record.codec import loads
from harness.record.environment import Environment
from harness.record.verdict import ExitCode
from harness.runtime.address import (
    address_file,
    address_to_json,
    interface_of,
    own_hosts,
    publish,
    withdraw,
)
from harness.runtime.control import Channel, ControlServer, Message
from harness.runtime.devices import num_gpus
from harness.runtime.limits import JOIN_S, PRELOAD_S
from harness.runtime.link import CONNECT_S, Hello, LinkServer
from harness.runtime.nodes import ASK_S, LOCAL, Node
from harness.runtime.options import Options, Supervision
from harness.runtime.processes import RankProcess
from harness.runtime.rank_layout import NodeShare, RankLayout
from harness.runtime.remote import RemoteNode, RemoteProcess
from harness.runtime.spawner import NodeLostError, SpawnerError, SpawnFacts
from harness.runtime.starters import Entry, Starter
from harness.runtime.stop import StopRequest
from harness.runtime.world import World

_NOT_COMPARED = ("host", "platform", "num_cpus", "variables", "image")
"""Facts of the environment that may differ between nodes without a word."""
SAY_S = 10.0
"""After which a leader says whom it waits for."""
LINGER_S = 10.0
"""For nodes that have not joined yet to come and be told that the run is over already."""
PART_S = 10.0
"""For nodes to close their ends once they were told that the run is over."""


class Hub:
    """All other nodes of a run over several."""

    def __init__(self, world: World, out: Path, stop: StopRequest) -> None:
        """Listen, and publish the address in the output folder.

        Raises:
            OSError: if that cannot be done.
        """
        self._world = world
        self._stop = stop
        self._server = LinkServer(own_hosts())
        self._made = _make_folder(out)
        self._file = address_file(out, world)
        publish(self._file, self._server.address)
        self._nodes: dict[int, RemoteNode] = {}
        self._number = ""
        self._ended = False
        stop.looks.append(self.pump)

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Every node of the run in order, this one first."""
        return (LOCAL, *(node for _, node in sorted(self._nodes.items())))

    @property
    def lost(self) -> str | None:
        """Which node went out of reach, None while all are there."""
        self.pump()
        return next((node.lost for node in self._nodes.values() if node.lost is not None), None)

    def pump(self) -> None:
        """Take in what followers sent."""
        for node in self._nodes.values():
            node.pump()

    def join(
        self, check: Callable[[], None], *, on_gpu: bool = False, limit_s: float = CONNECT_S
    ) -> None:
        """Wait until the follower of every other node is there.

        Args:
            check: Called several times a second; may raise to stop waiting.
            on_gpu: Whether every node needs as many GPUs as this one.
            limit_s: How long to wait.

        Raises:
            SpawnerError: naming the nodes that did not come, or that do not fit.
        """
        begin_s = time.monotonic()
        said = False
        while (missing := self._missing()) and time.monotonic() < begin_s + limit_s:
            check()
            self._take_one(0.2)
            if not said and time.monotonic() > begin_s + SAY_S:
                said = True
                waited = ", ".join(str(index) for index in missing)
                print(f"waiting for node {waited}", file=sys.stderr, flush=True)  # noqa: T201
        if missing:
            names = ", ".join(str(index) for index in missing)
            raise NodeLostError(
                f"the leader of node {names} did not join this run within {limit_s:.0f} s; its own "
                "output says why, or it does not see --out: expected a folder that all nodes share"
            )
        self._check_sizes(on_gpu)
        self._tell_hosts_apart()

    def _missing(self) -> list[int]:
        others = (i for i in range(self._world.num_nodes) if i != self._world.group_rank)
        return [index for index in others if index not in self._nodes]

    def _take_one(self, timeout_s: float) -> None:
        hello = self._server.expect(lambda said: "node" in said, timeout_s)
        if hello is None:
            return
        try:
            node = RemoteNode(hello.channel, hello.said)
        except (KeyError, ValueError, TypeError):
            hello.channel.close()
            return
        if node.index not in self._missing():
            node.close()
            return
        node.on_stop = self._stop.request
        self._nodes[node.index] = node
        self._number = self._number or hello.local_number

    def _check_sizes(self, on_gpu: bool) -> None:
        if self.lost is not None:
            raise NodeLostError(self.lost)
        nodes = self._nodes.values()
        total = self._world.local_world_size + sum(node.local_world_size for node in nodes)
        if total != self._world.world_size:
            raise SpawnerError(
                f"the nodes have {total} workers together, and the launcher says "
                f"{self._world.world_size}; was a worker started twice, or not at all?"
            )
        own = num_gpus()
        for node in nodes:
            if on_gpu and node.num_gpus != own:
                raise SpawnerError(
                    f"{node.name} has {node.num_gpus} GPUs and the leader's node has {own}; "
                    "expected the same number on every node"
                )

    def _tell_hosts_apart(self) -> None:
        """Machines of one name (``localhost``) are two all the same; one machine twice is not."""
        seen = {socket.gethostname(): boot_id()}
        for index, node in sorted(self._nodes.items()):
            if seen.setdefault(node.host, node.boot_id) != node.boot_id:
                node.host = f"{node.host}#{index}"

    def layout(self) -> RankLayout:
        """Return where the ranks of a scenario go."""
        own = NodeShare(
            workers=self._world.local_world_size,
            num_cpus=len(os.sched_getaffinity(0)),
            interface=interface_of(self._number),
        )
        others = [
            NodeShare(
                workers=node.local_world_size, num_cpus=node.num_cpus, interface=node.interface
            )
            for _, node in sorted(self._nodes.items())
        ]
        return RankLayout(shares=(own, *others), address=self._number)

    def starter(self, local: Starter, request: NodeRequest) -> NodesStarter:
        """Return what starts rank processes on every node."""
        others = [node for _, node in sorted(self._nodes.items())]
        return NodesStarter(local, others, self.layout(), request)

    def meeting(self, local: ControlServer) -> NodesMeeting:
        """Return where processes of a generation join, whichever node they are on."""
        return NodesMeeting(local, self._server, self.layout())

    def end(self, code: ExitCode) -> None:
        """Tell every node how the run ended and close the links; a second call does nothing."""
        if self._ended:
            return
        self._ended = True
        limit = time.monotonic() + LINGER_S
        while self._missing() and time.monotonic() < limit:
            self._take_one(0.2)
        for node in self._nodes.values():
            node.say({"do": "end", "code": int(code)})
        limit = time.monotonic() + PART_S
        for node in self._nodes.values():
            node.part(limit)
        self._server.close()
        withdraw(self._file, self._server.address)
        for folder in self._made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def shared_folder(options: Options) -> Path:
    """Return the folder that holds the run folder: where the nodes of a run meet."""
    return Path(options.out) if options.resume is None else Path(options.resume).resolve().parent


def _make_folder(out: Path) -> list[Path]:
    """Make a folder with its parents; return those that were not there, the innermost first."""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    out.mkdir(parents=True, exist_ok=True)
    return made


def boot_id() -> str:
    """Return what tells this machine's present run of the kernel from any other's."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeRequest:
    """What every node does before its first rank process.

    Attributes:
        run: Run folder, which every node must see.
        paths: Folders that come first on the module path.
        hide_gpus: Modelled kernels beside GPUs: nothing may find them.
        megatron: Checkout, None for what is installed.
        environment: What the leader's node runs.
    """

    run: Path
    supervision: Supervision
    paths: tuple[str, ...]
    hide_gpus: bool
    megatron: str | None
    environment: Environment

    def order(self, workers: int) -> Message:
        """Return the order for a node with that many workers."""
        return {
            "do": "prepare",
            "run": str(self.run),
            "supervision": self.supervision,
            "paths": list(self.paths),
            "hide_gpus": self.hide_gpus,
            "megatron": self.megatron,
            "workers": workers,
        }


def node_differences(name: str, here: Environment, there: Environment) -> Iterator[str]:
    """Return a sentence for each version, build or GPU that differs between two nodes."""
    for item in fields(Environment):
        if item.name in _NOT_COMPARED:
            continue
        ours, theirs = getattr(here, item.name), getattr(there, item.name)
        if item.name == "gpus":
            ours, theirs = ([gpu.name for gpu in gpus] for gpus in (ours, theirs))
        if ours != theirs:
            yield f"{name}: {item.name} is {theirs} there and {ours} on the leader's node"


class NodesStarter:
    """Starts rank processes on this node by ``local``, on the others by their followers."""

    def __init__(
        self,
        local: Starter,
        nodes: Sequence[RemoteNode],
        layout: RankLayout,
        request: NodeRequest,
    ) -> None:
        """Start on this node first, then on the others in the order of the layout."""
        self._local = local
        self._nodes = nodes
        self._layout = layout
        self._request = request

    def prepare(self, check: Callable[[], None]) -> SpawnFacts:
        """Have every node do its imports, all at the same time, and compare clocks."""
        pending = {
            node: node.ask(
                self._request.order(node.local_world_size), PRELOAD_S + JOIN_S + ASK_S, check
            )
            for node in self._nodes
        }
        facts = self._local.prepare(check)
        warnings: list[str] = []
        for node, wait in pending.items():
            answer = wait()
            self._read(node, answer)
            node.compare_clocks(ASK_S)
            there = loads(Environment, answer["environment"])
            warnings += node_differences(node.name, self._request.environment, there)
        return replace(facts, warnings=tuple(warnings))

    def start(self, entry: Entry, request: str, local_rank: int) -> RankProcess:
        """Start a process on the node of a rank of the run."""
        place, local_rank = self._layout.where(local_rank)
        if place == 0:
            return self._local.start(entry, request, local_rank)
        node = self._nodes[place - 1]
        order = {"do": "start", "entry": entry, "request": request, "local_rank": local_rank}
        answer = node.ask(order, JOIN_S)()
        if node.lost is None:
            self._read(node, answer)
        return RemoteProcess(node, int(answer.get("id", 0)), int(answer.get("pid", 0)))

    def check(self) -> None:
        """See that what starts processes is there on every node that is."""
        self._local.check()
        pending = {node: node.ask({"do": "check"}, ASK_S) for node in self._nodes}
        for node, answer in pending.items():
            found = answer()
            if node.lost is None:
                self._read(node, found)

    @staticmethod
    def _read(node: RemoteNode, answer: Message) -> None:
        if node.lost is not None:
            raise NodeLostError(node.lost)
        if answer.get("error"):
            raise SpawnerError(f"{node.name}: {answer['error']}")


class NodesMeeting:
    """Processes of this node meet the leader at its socket, those of others over the network."""

    def __init__(self, local: ControlServer, server: LinkServer, layout: RankLayout) -> None:
        self._local = local
        self._server = server
        self._layout = layout
        self._remote: set[str] = set()

    def invitation(self, name: str, worker: int) -> str:
        """Return the request by which ``run_member`` finds the way."""
        if self._layout.where(worker)[0] == 0:
            return self._local.invitation(name, worker)
        self._remote.add(name)
        return f"{address_to_json(self._server.address)}\n{name}"

    def expect(self, hello: Message, timeout_s: float) -> Channel | None:
        """Return the channel of the peer with that name, None in time-out."""
        name = hello["member"]
        if name not in self._remote:
            return self._local.expect(hello, timeout_s)
        found: Hello | None = self._server.expect(
            lambda said: said.get("member") == name, timeout_s
        )
        return found.channel if found is not None else None
