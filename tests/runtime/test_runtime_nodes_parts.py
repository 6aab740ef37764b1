"""Leader and follower of different nodes against each other, with processes that are none."""

import os
import socket
import threading
import time
from dataclasses import replace

import pytest

from harness.record.codec import dumps
from harness.record.verdict import ExitCode
from harness.runtime.control import Channel
from harness.runtime.fingerprint import collect
from harness.runtime.hub import NodeRequest, node_differences
from harness.runtime.node_follower import (
    LeaderGoneError,
    NodeFollower,
    own_hello,
)
from harness.runtime.nodes import LOCAL, kill_order, look_order, on_each
from harness.runtime.remote import RemoteNode, RemoteProcess
from harness.runtime.spawner import SpawnerError, SpawnFacts
from harness.runtime.stop import StopRequest
from harness.runtime.world import World

SAID = {
    "node": 1,
    "host": "n2",
    "boot_id": "b",
    "local_world_size": 2,
    "interface": "lo",
    "num_gpus": 0,
    "num_cpus": 4,
}


class Process:
    """A rank process that ends when told."""

    def __init__(self, pid):
        self.pid = pid
        self.status = None
        self.closed = False

    def filenos(self):
        return ()

    def poll(self):
        return self.status

    def alive(self):
        return self.status is None

    def close(self):
        self.closed = True


class Starter:
    """Starts processes that are none, and remembers them."""

    def __init__(self, fail=""):
        self.started = []
        self.fail = fail

    def prepare(self, check):
        return SpawnFacts(start_method="forkserver")

    def start(self, entry, request, local_rank):
        if self.fail:
            raise SpawnerError(self.fail)
        # A process id that no process has: the kernel's are below 2**22.
        self.started.append(Process(2**22 + 1 + len(self.started)))
        self.asked = (entry, request, local_rank)
        return self.started[-1]

    def check(self):
        if self.fail:
            raise SpawnerError(self.fail)


class Served:
    """A follower in a thread, and the leader's end of its link."""

    def __init__(self, starter=None):
        ours, theirs = socket.socketpair()
        self.starter = starter or Starter()
        self.stop = StopRequest()
        self.follower = NodeFollower(Channel(theirs), None, self.stop)
        self.follower._starter = self.starter
        self.node = RemoteNode(Channel(ours), SAID)
        self.outcome = None
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self):
        try:
            self.outcome = self.follower.serve()
        except LeaderGoneError as error:
            self.outcome = error

    def join(self):
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.outcome

    def start(self):
        answer = self.node.ask(
            {"do": "start", "entry": "single", "request": "r", "local_rank": 1}, 5
        )()
        return RemoteProcess(self.node, answer["id"], answer["pid"])


@pytest.fixture
def served():
    made = []

    def make(*args):
        made.append(Served(*args))
        return made[-1]

    yield make
    for one in made:
        one.node.close()
        one.join()


def _until(true, limit_s=10.0):
    limit = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_process_is_started_watched_and_reported(served):
    one = served()
    process = one.start()
    assert one.starter.asked == ("single", "r", 1)
    assert process.node is one.node
    assert process.alive()
    assert process.filenos() == (one.node.fileno(),)
    one.starter.started[0].status = -11
    _until(lambda: process.poll() is not None)
    assert process.poll() == -11
    assert process.ended_s is not None
    assert process.lost is None
    assert one.starter.started[0].closed
    one.node.say({"do": "end", "code": 4})
    assert one.join() == 4


def test_orders_about_processes_are_carried_out_there(served):
    one = served()
    here, none = os.getpid(), 2**22 + 99
    answers = on_each({one.node: look_order([here, none], []), LOCAL: look_order([here], [])}, 5.0)
    assert answers[one.node]["states"].keys() == {str(here), str(none)}
    assert answers[one.node]["states"][str(none)] is None
    assert answers[LOCAL]["states"][str(here)] is not None
    assert on_each({one.node: kill_order([], [none], 0.1)}, 5.0)[one.node]["left"] == []


def test_clocks_are_compared(served, monkeypatch):
    one = served()
    one.follower._orders["clock"] = lambda order: {"t": time.monotonic() - 1000.0}
    one.node.compare_clocks(5.0)
    assert abs(one.node.offset_s - 1000.0) < 0.5


def test_a_start_that_fails_says_why(served):
    one = served(Starter(fail="no memory"))
    answer = one.node.ask({"do": "start", "entry": "single", "request": "", "local_rank": 0}, 5)()
    assert answer["error"] == "no memory"
    assert one.node.lost is None


def test_a_follower_that_vanishes_takes_its_processes_with_it(served):
    one = served()
    process = one.start()
    one.follower._link._socket.shutdown(socket.SHUT_RDWR)
    _until(lambda: process.poll() is not None)
    assert process.lost == "node 1 (n2) was lost: its connection closed"
    assert process.filenos() == ()
    assert one.node.ask({"do": "check"}, 5.0)() == {}
    assert isinstance(one.join(), LeaderGoneError)


def test_a_leader_that_vanishes_leaves_no_process(served, monkeypatch):
    ended = []
    monkeypatch.setattr(
        "harness.runtime.node_follower.kill_sessions",
        lambda running, gone, limit_s: ended.extend(running),
    )
    one = served()
    process = one.start()
    one.node.close()
    outcome = one.join()
    assert isinstance(outcome, LeaderGoneError)
    assert ended == [process.pid]


def test_what_a_follower_never_answers_makes_its_node_lost():
    ours, theirs = socket.socketpair()
    node = RemoteNode(Channel(ours), SAID)
    assert node.ask({"do": "kill"}, 0.2)() == {}
    assert node.lost == "node 1 (n2) was lost: it did not answer the order 'kill' in time"
    theirs.close()


@pytest.mark.parametrize("text", [b"no message\n", b"{\n"])
def test_a_follower_that_speaks_nonsense_is_lost(text):
    ours, theirs = socket.socketpair()
    node = RemoteNode(Channel(ours), SAID)
    theirs.sendall(text)
    node.pump(5.0)
    assert "what is no message" in node.lost
    theirs.close()


def test_a_message_cut_by_the_end_is_no_message():
    ours, theirs = socket.socketpair()
    node = RemoteNode(Channel(ours), SAID)
    theirs.sendall(b'{"ended": 1, "status": 0, "at": 1.0}\n{"ended": 2, "sta')
    theirs.close()
    _until(lambda: node.end_of(1) is not None and node.lost is not None)
    assert node.end_of(2) is None


def test_a_signal_to_a_node_stops_the_run(served):
    one = served()
    stop = StopRequest()
    stop.looks.append(one.node.pump)
    one.node.on_stop = stop.request
    assert not stop()
    one.stop.request(15)
    _until(stop)
    assert stop.exit_code is ExitCode.TERMINATED
    one.node.say({"do": "end", "code": 143})
    assert one.join() == 143


def test_a_node_that_was_told_to_stop_does_not_wait_for_ever(served, monkeypatch):
    monkeypatch.setattr("harness.runtime.node_follower.STOP_S", 0.2)
    one = served()
    one.stop.request(2)
    assert one.join() == 130


def test_a_follower_that_does_not_see_the_run_folder_says_so(served, tmp_path):
    one = served()
    request = NodeRequest(
        run=tmp_path / "elsewhere",
        supervision="node",
        paths=(),
        hide_gpus=False,
        megatron=None,
        environment=collect(),
    )
    answer = one.node.ask(request.order(2), 10.0)()
    assert f"does not see the run folder {tmp_path}/elsewhere" in answer["error"]
    assert one.follower._starter is one.starter, "nothing was prepared"


def test_nodes_with_different_builds_are_told():
    here = collect()
    assert list(node_differences("node 1 (n2)", here, replace(here, host="n2", num_cpus=7))) == []
    (sentence,) = node_differences("node 1 (n2)", here, replace(here, torch="2.9.0"))
    assert sentence == f"node 1 (n2): torch is 2.9.0 there and {here.torch} on the leader's node"


def test_what_a_node_tells_of_itself_can_be_read():
    world = World(global_rank=2, world_size=4, local_world_size=2, group_rank=1, num_nodes=2)
    said = {**own_hello(world), "interface": "lo"}
    ours, theirs = socket.socketpair()
    node = RemoteNode(Channel(ours), said)
    assert (node.index, node.local_world_size) == (1, 2)
    assert node.num_cpus >= 1
    node.close()
    theirs.close()


def test_the_environment_travels_between_nodes():
    from harness.record.codec import loads
    from harness.record.environment import Environment

    assert loads(Environment, dumps(collect())) == collect()
