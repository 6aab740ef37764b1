"""The control socket: found by equal workers, complete or absent, an end seen by everybody."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from harness.runtime.control import (
    Channel,
    ControlError,
    ControlServer,
    connect,
    control_folder,
    control_path,
)
from harness.runtime.world import World


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="dsa-"))
    yield path
    shutil.rmtree(path)


def test_workers_of_a_launcher_meet_and_others_do_not():
    one = control_path(World(run_id="a", local_rank=0, local_world_size=2, world_size=2))
    two = control_path(
        World(run_id="a", local_rank=1, global_rank=1, local_world_size=2, world_size=2)
    )
    assert one == two
    assert control_path(World(run_id="b")) != one
    assert control_path(World(run_id="a", restart_count=1)) != one
    assert len(os.fsencode(one)) < 108


def test_a_folder_of_another_user_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path)[:40])
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    name = Path("/tmp/dsa-harness-4242")
    if len(str(tmp_path)) > 40:
        monkeypatch.setattr(tempfile, "gettempdir", lambda: "/tmp")
    try:
        with pytest.raises(ControlError, match="belongs to another user; set TMPDIR"):
            control_folder()
    finally:
        if name.exists():
            name.rmdir()


def test_messages_arrive_in_order_and_the_end_is_seen(folder):
    server = ControlServer(folder / "s.sock")
    worker = connect(folder / "s.sock", {"worker": 1})
    channel = server.expect({"worker": 1}, 5.0)
    for number in range(3):
        channel.send({"number": number, "text": "x" * 10_000})
    assert [worker.receive(5.0)["number"] for _ in range(3)] == [0, 1, 2]
    assert worker.receive(0.0) is None and not worker.closed
    channel.close()
    assert worker.receive(5.0) is None and worker.closed
    worker.close()
    server.close()


def test_peers_are_told_apart_whatever_order_they_come_in(folder):
    server = ControlServer(folder / "s.sock")
    workers = {n: connect(folder / "s.sock", {"worker": n}) for n in (2, 1)}
    with contextlib.ExitStack() as stack:
        for number in (1, 2):
            channel = server.expect({"worker": number}, 5.0)
            stack.callback(channel.close)
            stack.callback(workers[number].close)
            channel.send({"you": number})
        assert [workers[n].receive(5.0)["you"] for n in (1, 2)] == [1, 2]
        assert server.expect({"worker": 3}, 0.05) is None
    server.close()


def test_a_peer_that_leaves_before_its_hello_is_forgotten(folder):
    server = ControlServer(folder / "s.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as silent:
        silent.connect(str(folder / "s.sock"))
    assert server.expect({"worker": 1}, 0.2) is None
    server.close()


def test_a_worker_waits_for_a_leader_that_is_late(folder):
    servers = []
    timer = threading.Timer(0.3, lambda: servers.append(ControlServer(folder / "s.sock")))
    timer.start()
    channel = connect(folder / "s.sock", {"worker": 1}, timeout_s=10.0)
    timer.join()
    assert isinstance(channel, Channel)
    servers[0].close()
    assert channel.receive(5.0) is None, "a leader that never accepted has ended"
    channel.close()


def test_a_worker_that_comes_after_the_end_leaves_at_once(folder):
    ControlServer(folder / "s.sock").close()
    begin_s = time.monotonic()
    assert connect(folder / "s.sock", {"worker": 1}, timeout_s=30.0) is None
    assert time.monotonic() - begin_s < 5


def test_a_worker_without_a_leader_gives_up(folder):
    assert connect(folder / "none.sock", {"worker": 1}, timeout_s=0.1) is None


def test_sockets_of_old_runs_are_removed_and_living_ones_are_not(folder):
    alive = ControlServer(folder / "alive.sock")
    ControlServer(folder / "old.sock").close()
    (folder / "old.d").mkdir()
    for name in ("alive.sock", "old.sock"):
        os.utime(folder / name, (1, 1))
    ControlServer(folder / "new.sock").close()
    assert {path.name for path in folder.iterdir()} == {"alive.sock", "new.sock"}
    alive.close()


def test_the_listening_end_does_not_reach_other_programs(folder):
    server = ControlServer(folder / "s.sock")
    code = "import os; print(len(os.listdir('/proc/self/fd')))"
    inherited = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, close_fds=False
    )
    server.close()
    without = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, close_fds=False
    )
    assert inherited.stdout == without.stdout


def test_a_socket_that_cannot_be_made_is_said(folder):
    with pytest.raises(ControlError, match="cannot make the control socket"):
        ControlServer(folder / "missing" / "s.sock")


def test_a_peer_that_never_reads_does_not_block_its_leader():
    ours, theirs = socket.socketpair()
    channel = Channel(ours, send_limit_s=0.2)
    channel.send({"text": "x" * 4_000_000})
    assert channel.closed
    theirs.close()
    channel.close()


def test_sending_to_a_peer_that_is_gone_marks_the_channel():
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    theirs.close()
    channel.send({"a": 1})
    channel.send({"a": 1})
    assert channel.closed
    channel.close()
