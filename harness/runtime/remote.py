"""Another node as the run's leader sees it: orders over the link, answers and ends of processes."""

from __future__ import annotations

import time
from collections.abc import Callable

from harness.runtime.control import Channel, Message
from harness.runtime.nodes import Node

_CLOCK_TRIES = 5


class RemoteNode:
    """A node behind a follower.

    Attributes:
        local_world_size: Workers that its launcher started there.
        interface: Network interface that its link runs over.
        num_gpus: GPUs that its processes may use.
        num_cpus: CPUs that its processes may use.
    """

    def __init__(self, channel: Channel, said: Message) -> None:
        """Follow the node that said hello over ``channel``."""
        self._channel = channel
        self.index = int(said["node"])
        self.host = str(said["host"])
        self.boot_id = str(said["boot_id"])
        self.local_world_size = int(said["local_world_size"])
        self.interface = str(said["interface"])
        self.num_gpus = int(said["num_gpus"])
        self.num_cpus = int(said["num_cpus"])
        self.offset_s = 0.0
        self.on_stop: Callable[[int], None] = lambda number: None
        self._number = 0
        self._answers: dict[int, Message] = {}
        self._ends: dict[int, Message] = {}
        self._lost: str | None = None

    @property
    def name(self) -> str:
        """The node, for messages."""
        return f"node {self.index} ({self.host})"

    @property
    def lost(self) -> str | None:
        """Why this node is out of reach."""
        return self._lost

    def fileno(self) -> int:
        """Return the link's descriptor."""
        return self._channel.fileno()

    def pump(self, timeout_s: float = 0.0) -> None:
        """Take in what the follower sent; wait for it up to a time where nothing is there yet."""
        while self._lost is None:
            try:
                message = self._channel.receive(timeout_s)
            except ValueError:
                self.give_up("its follower sent what is no message")
                return
            if message is None:
                if self._channel.closed:
                    self.give_up("its connection closed")
                return
            timeout_s = 0.0
            self._take(message)

    def _take(self, message: Message) -> None:
        if "re" in message:
            self._answers[int(message["re"])] = message
        elif "ended" in message:
            self._ends[int(message["ended"])] = message
        elif "stop" in message:
            self.on_stop(int(message["stop"]))

    def give_up(self, reason: str) -> None:
        """Count the node as lost from now on."""
        if self._lost is None:
            self._lost = f"{self.name} was lost: {reason}"
            self._channel.close()

    def ask(
        self, order: Message, limit_s: float, check: Callable[[], None] = lambda: None
    ) -> Callable[[], Message]:
        """Send an order; the result waits for the answer, calling ``check`` several times a second.

        A node that does not answer in time is lost: nobody knows what became of the order.
        """
        self._number += 1
        number = self._number
        if self._lost is None:
            self._channel.send({**order, "n": number})
        limit = time.monotonic() + limit_s
        return lambda: self._answer(number, order["do"], limit, check)

    def _answer(self, number: int, what: str, limit: float, check: Callable[[], None]) -> Message:
        while number not in self._answers and self._lost is None:
            left = limit - time.monotonic()
            if left <= 0:
                self.give_up(f"it did not answer the order {what!r} in time")
                break
            self.pump(min(left, 0.2))
            check()
        return self._answers.pop(number, {})

    def compare_clocks(self, limit_s: float) -> None:
        """Find out by how much this node's monotonic clock differs, within half a round trip."""
        best = float("inf")
        for _ in range(_CLOCK_TRIES):
            sent_s = time.monotonic()
            answer = self.ask({"do": "clock"}, limit_s)()
            back_s = time.monotonic()
            if answer and back_s - sent_s < best:
                best = back_s - sent_s
                self.offset_s = (sent_s + back_s) / 2 - float(answer["t"])

    def end_of(self, number: int) -> Message | None:
        """Return how a process of this node ended, None while it runs."""
        self.pump()
        return self._ends.get(number)

    def say(self, message: Message) -> None:
        """Send what needs no answer."""
        if self._lost is None:
            self._channel.send(message)

    def part(self, limit: float) -> None:
        """Close the link when the follower has, or at the time ``limit``.

        Closing it with something unread would throw away what was sent last.
        """
        if self._lost is None:
            self._channel.finish()
        while self._lost is None and (left := limit - time.monotonic()) > 0:
            self.pump(left)
        self.close()

    def close(self) -> None:
        """Close the link."""
        self._channel.close()


class RemoteProcess:
    """A rank process on another node; that node's follower reports its end."""

    def __init__(self, node: RemoteNode, number: int, pid: int) -> None:
        """Follow process ``number`` of the node; 0 for one that was never started."""
        self._node = node
        self._number = number
        self.pid = pid
        self.ended_s: float | None = None
        self._exit: int | None = None
        self.lost: str | None = None

    @property
    def node(self) -> Node:
        """The node it runs on."""
        return self._node

    def filenos(self) -> tuple[int, ...]:
        """Return the link's descriptor."""
        return (self._node.fileno(),) if self._exit is None and self._node.lost is None else ()

    def poll(self) -> int | None:
        """Return the exit code, 255 when the node is gone, and its processes with it."""
        if self._exit is None:
            message = self._node.end_of(self._number)
            if message is not None:
                self._exit = int(message["status"])
                self.ended_s = float(message["at"])
            elif self._node.lost is not None:
                self._exit, self.lost = 255, self._node.lost
        return self._exit

    def alive(self) -> bool:
        """Tell whether the end was not reported yet."""
        return self.poll() is None

    def close(self) -> None:
        """Nothing to release: the link stays."""
