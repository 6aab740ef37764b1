"""The nodes of a run, and what is done on each of them to the processes that run there.

Process ids, stacks, cgroups and GPUs belong to one machine. The supervisor gives orders to nodes;
its own node carries them out itself, the others by the hand of their followers, with the same
functions.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from harness.record.evidence import NoteEvidence
from harness.runtime import pyspy
from harness.runtime.cgroup import oom_kills
from harness.runtime.control import Message
from harness.runtime.devices import unclean_gpus, used_memory
from harness.runtime.processes import kill_sessions, process_state, send_signal

ASK_S = 30.0
"""For a node to answer, beyond what the order itself may take."""


class Node(Protocol):
    """One machine of the run.

    Attributes:
        index: As the launcher counts nodes; usually the leader's is 0.
        host: Host name.
        offset_s: What to add to a time of this node's monotonic clock to get the leader's.
    """

    index: int
    host: str
    offset_s: float

    @property
    def lost(self) -> str | None:
        """Why this node is out of reach, None while it is there."""

    def ask(self, order: Message, limit_s: float) -> Callable[[], Message]:
        """Give an order; the result returns the answer, empty when the node is lost."""


class LocalNode:
    """The machine of this process."""

    index = 0
    offset_s = 0.0
    lost = None

    def __init__(self) -> None:
        self.host = ""

    def ask(self, order: Message, limit_s: float) -> Callable[[], Message]:
        """Return what carries the order out."""
        return lambda: perform(order)


LOCAL = LocalNode()
"""Node of every process that this one reaches by itself."""


def on_each(orders: Mapping[Node, Message], limit_s: float) -> dict[Node, Message]:
    """Give each node its order, all at the same time, and return the answers."""
    nodes = sorted(orders, key=lambda node: (node is not LOCAL, node.index))
    pending = [(node, node.ask(orders[node], limit_s)) for node in nodes]
    return {node: answer() for node, answer in pending}


def perform(order: Message) -> Message:
    """Carry out an order on this machine."""
    return _OPERATIONS[order["do"]](order)


def is_operation(order: Message) -> bool:
    """Tell whether ``perform`` knows the order."""
    return order.get("do") in _OPERATIONS


def look_order(pids: Sequence[int], dump: Sequence[int]) -> Message:
    """Ask for the states of processes, and those in ``dump`` for their Python stacks."""
    return {"do": "look", "pids": list(pids), "dump": list(dump)}


def _look(order: Message) -> Message:
    states = {str(pid): process_state(pid) for pid in order["pids"]}
    for pid in order["dump"]:
        send_signal(pid, signal.SIGUSR1)
    return {"states": states}


def kill_order(running: Sequence[int], ended: Sequence[int], limit_s: float) -> Message:
    """Kill rank processes with all that is in their sessions (see ``kill_sessions``)."""
    return {"do": "kill", "running": list(running), "ended": list(ended), "limit_s": limit_s}


def _kill(order: Message) -> Message:
    return {"left": kill_sessions(order["running"], order["ended"], order["limit_s"])}


def stacks_order(targets: Sequence[pyspy.Target], folder: Path) -> Message:
    """Dump stacks with native frames."""
    rows = [(t.global_rank, t.pid, str(t.file), t.stopped) for t in targets]
    return {"do": "stacks", "targets": rows, "folder": str(folder)}


def _stacks(order: Message) -> Message:
    targets = [
        pyspy.Target(global_rank=rank, pid=pid, file=Path(file), stopped=stopped)
        for rank, pid, file, stopped in order["targets"]
    ]
    notes = pyspy.dump(targets, Path(order["folder"]))
    return {"notes": [(note.topic, note.text) for note in notes]}


def notes_of(answer: Message) -> tuple[NoteEvidence, ...]:
    """Read the notes of an answer to ``stacks_order``."""
    return tuple(NoteEvidence(topic=topic, text=text) for topic, text in answer.get("notes", ()))


def memory_kills(node: Node) -> Callable[[], int | None]:
    """Return what reads a node's counter of the out-of-memory killer; None where none counts."""
    return lambda: node.ask({"do": "memory_kills"}, ASK_S)().get("kills")


def _memory_kills(order: Message) -> Message:
    return {"kills": oom_kills()}


def _used_memory(order: Message) -> Message:
    return {"used": used_memory()}


def _unclean(order: Message) -> Message:
    return {"unclean": unclean_gpus(order["baseline"])}


_OPERATIONS: dict[Any, Callable[[Message], Message]] = {
    "look": _look,
    "kill": _kill,
    "stacks": _stacks,
    "memory_kills": _memory_kills,
    "used_memory": _used_memory,
    "unclean": _unclean,
}


class GpuBaselines:
    """Memory in use on the GPUs of several nodes before an attempt, and what stays afterwards."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Read the memory in use now."""
        answers = on_each({node: {"do": "used_memory"} for node in nodes}, ASK_S)
        self._used = {node: answer["used"] for node, answer in answers.items() if answer}

    def unclean(self) -> tuple[str, ...]:
        """Say which GPUs have not gone back to their baseline."""
        orders = {node: {"do": "unclean", "baseline": u} for node, u in self._used.items() if u}
        answers = on_each(orders, ASK_S)
        return tuple(
            text if node is LOCAL else f"node {node.index} ({node.host}): {text}"
            for node, answer in answers.items()
            for text in answer.get("unclean", ())
        )
