"""Connections between nodes: JSON lines over TCP, for those who know the run's token.

The leader listens on a port that the kernel chose. Whoever connects says the token and what it is
(a node, or a process that joins a generation) in its first line and is welcomed, or refused in one
line. Standard library only, because followers import it before anything else.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import select
import socket
import time
from collections.abc import Callable
from pathlib import Path

from harness.runtime.address import Address, find, interface_of, is_loopback, plain
from harness.runtime.control import Channel, Message

CONNECT_S = 120.0
"""How long a node looks for its run's leader; launchers start all nodes within moments."""
HELLO_S = 10.0
"""How long a connection may stay silent before it is dropped."""
DIAL_S = 5.0
"""For one attempt to connect to one address."""

_MOST_PENDING = 256
_LONGEST_HELLO = 1 << 16
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 4))
_UNANSWERED_MS = 20_000


class LinkError(RuntimeError):
    """This node cannot reach the leader of its run; the message says what to look at."""


class Hello:
    """A peer that was welcomed: what it said, and the channel to it."""

    def __init__(self, connection: socket.socket, said: Message) -> None:
        self.said = said
        self.channel = Channel(connection)
        self.local_number = plain(connection.getsockname()[0])
        self.peer_number = plain(connection.getpeername()[0])


class _Pending:
    """A connection that has not said its hello yet."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.buffer = b""
        self.limit = time.monotonic() + HELLO_S

    def read(self) -> bool:
        """Take in what came; False when nothing more will."""
        try:
            data = self.connection.recv(1 << 12)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.buffer += data
        return bool(data) and len(self.buffer) <= _LONGEST_HELLO


class LinkServer:
    """The leader's end."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        """Listen on a free port: on loopback alone where ``hosts`` name nothing else.

        Raises:
            OSError: if that cannot be done.
        """
        only_here = all(is_loopback(host) for host in hosts)
        if only_here or not socket.has_dualstack_ipv6():
            where = "127.0.0.1" if only_here else ""
            self._listener = socket.create_server((where, 0), backlog=_MOST_PENDING)
        else:
            self._listener = socket.create_server(
                ("", 0), family=socket.AF_INET6, backlog=_MOST_PENDING, dualstack_ipv6=True
            )
        port = self._listener.getsockname()[1]
        self.address = Address(hosts=hosts, port=port, token=secrets.token_hex(16))
        self._listener.setblocking(False)
        self._pending: list[_Pending] = []
        self._welcomed: list[Hello] = []

    def expect(self, wanted: Callable[[Message], bool], timeout_s: float) -> Hello | None:
        """Return the next welcomed peer whose hello is wanted, None when the time is over.

        Connections that stay silent, or do not know the token, hold nobody up.
        """
        limit = time.monotonic() + timeout_s
        while True:
            for index, hello in enumerate(self._welcomed):
                if wanted(hello.said):
                    return self._welcomed.pop(index)
            left = limit - time.monotonic()
            if left <= 0:
                return None
            self._step(min(left, 0.2))

    def _step(self, timeout_s: float) -> None:
        sockets = [self._listener, *(item.connection for item in self._pending)]
        ready, _, _ = select.select(sockets, [], [], timeout_s)
        if self._listener in ready:
            with contextlib.suppress(OSError):
                connection, _ = self._listener.accept()
                self._pending.append(_Pending(connection))
        now = time.monotonic()
        for item in list(self._pending):
            alive = item.read() if item.connection in ready else now < item.limit
            if not alive or b"\n" in item.buffer:
                self._pending.remove(item)
                self._judge(item)

    def _judge(self, item: _Pending) -> None:
        """Welcome who knows the token, tell anybody else that it is the wrong one."""
        said = _first_message(item.buffer)
        connection = item.connection
        if said is None:
            connection.close()
            return
        if not hmac.compare_digest(str(said.pop("token", "")), self.address.token):
            channel = Channel(connection, send_limit_s=1.0)
            channel.send({"refused": "another token than this run's"})
            channel.close()
            return
        connection.setblocking(True)
        keep_alive(connection)
        hello = Hello(connection, said)
        hello.channel.send({"welcome": True})
        self._welcomed.append(hello)

    def close(self) -> None:
        """Stop listening and drop those that nobody expected."""
        for item in self._pending:
            item.connection.close()
        for hello in self._welcomed:
            hello.channel.close()
        self._listener.close()


def _first_message(buffer: bytes) -> Message | None:
    line, newline, _ = buffer.partition(b"\n")
    if not newline:
        return None
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) else None


def keep_alive(connection: socket.socket) -> None:
    """Have the kernel notice within seconds that the other machine is gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MS)


class Joined:
    """A follower's end of the connection."""

    def __init__(self, channel: Channel, address: Address) -> None:
        self.channel = channel
        self.address = address


def dial(address: Address, hello: Message) -> Joined | str:
    """Connect to the first host that welcomes this peer, or say why none does.

    The hello also tells the network interface that the connection goes out by.
    """
    problem = "it names no host"
    for host in address.hosts:
        try:
            connection = socket.create_connection((host, address.port), timeout=DIAL_S)
        except OSError as error:
            problem = f"{host}:{address.port}: {error.strerror or error}"
            continue
        connection.settimeout(None)
        keep_alive(connection)
        local_number = plain(connection.getsockname()[0])
        channel = Channel(connection)
        interface = interface_of(local_number)
        channel.send({**hello, "interface": interface, "token": address.token})
        answer = _answer(channel)
        if answer is not None and answer.get("welcome"):
            return Joined(channel, address)
        channel.close()
        if answer is not None and "refused" in answer:
            problem = f"{host}:{address.port} refused it: {answer['refused']}"
        else:
            problem = f"{host}:{address.port} gave no answer"
    return problem


def _answer(channel: Channel) -> Message | None:
    try:
        answer = channel.receive(HELLO_S)
    except ValueError:  # whoever listens there now is no leader of a run
        return None
    return answer if isinstance(answer, dict) else None


def join_run(
    file: Path,
    hello: Message,
    *,
    who: str,
    limit_s: float = CONNECT_S,
    check: Callable[[], None] = lambda: None,
) -> Joined:
    """Wait for the leader's address in the shared folder and connect to it.

    An address that nobody answers at may be left of an earlier run: it is read again until the
    time is over.

    Args:
        file: Where the leader publishes its address.
        hello: What this node tells of itself.
        who: This node, for messages.
        limit_s: How long to look.
        check: Called a few times a second; may raise to stop waiting.

    Raises:
        LinkError: when the time is over.
    """
    limit = time.monotonic() + limit_s
    problem = ""
    while time.monotonic() < limit:
        check()
        address = find(file)
        if address is not None:
            joined = dial(address, hello)
            if isinstance(joined, Joined):
                return joined
            problem = joined
        time.sleep(0.1)
    if not problem:
        raise LinkError(
            f"{who} does not see {file} of the leader after {limit_s:.0f} s; expected --out on a "
            "file system that all nodes share, at the same path"
        )
    raise LinkError(
        f"{who} cannot reach the leader of the run named in {file} ({problem}); expected a network "
        "on which the nodes reach each other, and no other run with the same id and --out"
    )
