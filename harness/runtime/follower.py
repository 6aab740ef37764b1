"""What a worker other than the leader does when the leader needs it."""

from __future__ import annotations

import select
from collections.abc import Callable

from harness.runtime.child import serve
from harness.runtime.control import Channel, Message
from harness.runtime.spawner import LocalChild, Spawner, SpawnerError
from harness.runtime.starters import ENTRIES


def follow(channel: Channel, order: Message) -> int:
    """Carry out the leader's first order until it closes the channel; return the exit status."""
    orders: dict[str, Callable[[], int]] = {
        "run": lambda: 0 if serve(channel) else 1,
        "supervise": lambda: _supervise(channel, order),
    }
    return orders[order["do"]]()


def _supervise(channel: Channel, order: Message) -> int:
    """Start this worker's rank processes, one after the other, and report their ends."""
    spawner = Spawner(cuda=True, paths=order["paths"])
    try:
        facts = spawner.prepare()
    except SpawnerError as error:
        channel.send({"error": str(error)})
        return 0
    channel.send({"error": "", "start_method": facts.start_method})
    child: LocalChild | None = None
    while not channel.closed:
        waiting = [channel.fileno(), *(child.filenos() if child is not None else ())]
        select.select(waiting, [], [])
        if child is not None and (status := child.poll()) is not None:
            child.close()
            child = None
            channel.send({"ended": status})
        message = channel.receive(0.0)
        if message is not None:
            assert child is None, "the leader starts a child after the end of the last one"
            child = spawner.start(ENTRIES[message["entry"]], message["request"])
            channel.send({"started": child.pid})
    return 0
