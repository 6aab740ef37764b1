"""The leader's control socket on its node, and the JSON lines that go over it.

All workers of a node compute the same socket path from what they share (user, launcher process, run
id). The leader binds it first thing; the other workers connect and block. A worker that the
leader needs is told what to do; the rest sleep in ``recv`` until the leader's end closes the
connection. Standard library only, because waiting workers import it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import select
import shutil
import socket
import stat
import struct
import tempfile
import time
from pathlib import Path
from typing import Any, Protocol

from harness.runtime.world import World

CONNECT_S = 120.0
"""How long a worker looks for its leader's socket; the leader binds within its first second."""
SEND_S = 30.0
"""How long a message may wait for its reader; a stopped process must not stop its leader."""

_MAX_SOCKET_PATH = 104
_STALE_S = 60.0

Message = dict[str, Any]


class ControlError(OSError):
    """The folder of control sockets cannot be used."""


def control_folder() -> Path:
    """Return the user's folder for sockets and rendezvous files, created with mode 0700.

    Raises:
        ControlError: if the folder exists and belongs to somebody else.
    """
    name = f"dsa-harness-{os.getuid()}"
    folder = Path(tempfile.gettempdir()) / name
    if len(os.fsencode(folder)) + 24 > _MAX_SOCKET_PATH:
        folder = Path("/tmp") / name  # noqa: S108 (ownership and mode are checked below)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid():
        raise ControlError(f"{folder} belongs to another user; set TMPDIR to a folder of your own")
    return folder


def control_path(world: World) -> Path:
    """Return the control socket of this worker's node and launcher process."""
    # Under a tool that wraps the worker, the launcher is not the parent.
    parent = int(os.environ.get("DSA_HARNESS_LAUNCHER_PID") or os.getppid())
    shared = (parent, _start_time(parent), _pid_namespace(), world.run_id, world.restart_count)
    digest = hashlib.sha256(repr(shared).encode()).hexdigest()[:16]
    return control_folder() / f"{digest}.sock"


def _start_time(pid: int) -> str:
    """Start time of a process in clock ticks since boot: tells reused process ids apart."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


class Channel:
    """One connection; messages are JSON objects, one a line."""

    def __init__(self, connection: socket.socket, *, send_limit_s: float = SEND_S) -> None:
        """Take over a connection; a peer that does not read within the limit counts as gone."""
        limit = struct.pack("ll", int(send_limit_s), int(send_limit_s % 1 * 1e6))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._socket = connection
        self._buffer = b""
        self.closed = False
        """True once the other side is gone."""

    def fileno(self) -> int:
        """Return the descriptor to select on."""
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Send one message; a vanished peer marks the channel closed instead of raising."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.closed = True

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next message, or None when the peer is gone or the time is over."""
        limit = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = None if limit is None else max(0.0, limit - time.monotonic())
            if self.closed or not select.select([self._socket], [], [], left)[0]:
                return None
            self._fill()
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def _fill(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        self.closed = not data
        self._buffer += data

    def finish(self) -> None:
        """Say that this end sends nothing more; what the other sends can still be received."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close this end."""
        self.closed = True
        self._socket.close()


class Meeting(Protocol):
    """Where processes that the leader had started meet it again."""

    def invitation(self, name: str, worker: int) -> str:
        """Return the request by which ``run_member`` finds the way."""

    def expect(self, hello: Message, timeout_s: float) -> Channel | None:
        """Return the channel of the peer whose first message equals ``hello``, None in time-out."""


class ControlServer:
    """The leader's end: a listening socket that exists complete or not at all."""

    def __init__(self, path: Path) -> None:
        """Bind and listen under a temporary name, then rename to ``path``.

        Raises:
            ControlError: if the socket cannot be made.
        """
        self.path = path
        _remove_stale(path.parent)
        temporary = path.with_suffix(f".{os.getpid() % 100000}")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(os.fspath(temporary))
            self._listener.listen(1024)
            os.replace(temporary, path)
        except OSError as error:
            self._listener.close()
            raise ControlError(f"cannot make the control socket {path}: {error}") from error
        self._waiting: list[tuple[Channel, Message]] = []

    def fileno(self) -> int:
        """Return the descriptor that is readable when somebody connects."""
        return self._listener.fileno()

    def invitation(self, name: str, worker: int) -> str:
        """Return the request by which a process of this node finds this socket."""
        return f"{self.path}\n{name}"

    def expect(self, hello: Message, timeout_s: float) -> Channel | None:
        """Return the channel of the peer whose first message equals ``hello``, None in time-out."""
        limit = time.monotonic() + timeout_s
        while True:
            for index, (channel, seen) in enumerate(self._waiting):
                if seen == hello:
                    del self._waiting[index]
                    return channel
            left = limit - time.monotonic()
            if left <= 0 or not select.select([self._listener], [], [], left)[0]:
                return None
            channel = Channel(self._listener.accept()[0])
            first = channel.receive(timeout_s=max(0.0, left))
            if first is None:
                channel.close()
            else:
                self._waiting.append((channel, first))

    def close(self) -> None:
        """Stop listening and drop those that still wait.

        The socket file stays: a worker that comes late is then refused, and knows that the run is
        over. The next run removes it.
        """
        for channel, _ in self._waiting:
            channel.close()
        self._listener.close()


def _remove_stale(folder: Path) -> None:
    for path in folder.glob("*.sock"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_S and not _is_alive(path):
                shutil.rmtree(path.with_suffix(".d"), ignore_errors=True)
                path.unlink()


def _is_alive(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.2)
        return probe.connect_ex(os.fspath(path)) != errno.ECONNREFUSED


def connect(path: Path, hello: Message, timeout_s: float = CONNECT_S) -> Channel | None:
    """Connect to the leader and say hello; None when the leader has ended or never came."""
    limit = time.monotonic() + timeout_s
    while time.monotonic() < limit:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        number = connection.connect_ex(os.fspath(path))
        if number == 0:
            channel = Channel(connection)
            channel.send(hello)
            return channel
        connection.close()
        if number not in (errno.ENOENT, errno.EAGAIN):
            return None
        time.sleep(0.02)
    return None
