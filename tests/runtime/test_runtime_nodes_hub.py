"""Nodes that join a run: all of them, one too few, one that does not fit; and how it ends."""

import socket
import threading
import time

import pytest

from harness.record.verdict import ExitCode
from harness.runtime.address import address_file, find
from harness.runtime.hub import Hub
from harness.runtime.link import Joined, dial
from harness.runtime.node_follower import LeaderGoneError, follow_leader
from harness.runtime.spawner import NodeLostError, SpawnerError
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


class Joining:
    """Followers that join a hub from threads."""

    def __init__(self, out):
        self.out = out
        self.threads = []
        self.codes = {}

    def add(self, index):
        def follow():
            world = _world(index)
            stop = StopRequest()
            try:
                self.codes[index] = follow_leader(world, self.out, None, stop, limit_s=20.0)
            except LeaderGoneError as error:
                self.codes[index] = error

        self.threads.append(threading.Thread(target=follow))
        self.threads[-1].start()

    def join(self):
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive()


def _world(index, num_nodes=3, per_node=2):
    return World(
        global_rank=index * per_node,
        local_rank=0,
        world_size=num_nodes * per_node,
        local_world_size=per_node,
        group_rank=index,
        num_nodes=num_nodes,
        run_id="job",
    )


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")


def test_nodes_join_and_are_told_the_end(tmp_path, here):
    out = tmp_path / "runs" / "of-today"
    joining = Joining(out)
    for index in (2, 1):
        joining.add(index)
    hub = Hub(_world(0), out, StopRequest())
    hub.join(lambda: None, limit_s=20.0)
    assert [node.index for node in hub.nodes] == [0, 1, 2]
    assert hub.lost is None
    layout = hub.layout()
    assert layout.address == "127.0.0.1"
    assert [share.workers for share in layout.shares] == [2, 2, 2]
    assert {share.interface for share in layout.shares} == {"lo"}
    hub.end(ExitCode.CHECK_FAILED)
    hub.end(ExitCode.OK)
    joining.join()
    assert joining.codes == {1: 1, 2: 1}
    assert list(tmp_path.iterdir()) == [], "nothing is left of the meeting"


def test_the_end_reaches_a_node_although_something_it_sent_was_not_read(tmp_path, here):
    hub = Hub(_world(0, num_nodes=2), tmp_path, StopRequest())
    found = []
    thread = threading.Thread(target=lambda: found.append(dial(hub._server.address, SAID)))
    thread.start()
    hub.join(lambda: None, limit_s=20.0)
    thread.join()
    channel = found[0].channel
    for number in range(1000):
        channel.send({"ended": number, "status": 0, "at": 1.0})
    ending = threading.Thread(target=hub.end, args=(ExitCode.OK,))
    ending.start()
    time.sleep(0.3)
    assert channel.receive(10.0) == {"do": "end", "code": 0}
    channel.close()
    ending.join(20)
    assert not ending.is_alive()


def test_a_node_that_does_not_come_is_named(tmp_path, here, monkeypatch):
    monkeypatch.setattr("harness.runtime.hub.LINGER_S", 0.1)
    joining = Joining(tmp_path)
    joining.add(1)
    hub = Hub(_world(0), tmp_path, StopRequest())
    with pytest.raises(NodeLostError, match=r"leader of node 2 did not join .* shared?"):
        hub.join(lambda: None, limit_s=2.0)
    hub.end(ExitCode.FAULT)
    joining.join()
    assert joining.codes == {1: 4}


def test_a_run_that_is_over_before_a_node_came_tells_it(tmp_path, here):
    joining = Joining(tmp_path)
    hub = Hub(_world(0, num_nodes=2), tmp_path, StopRequest())
    timer = threading.Timer(0.5, joining.add, (1,))
    timer.start()
    hub.end(ExitCode.USAGE)
    timer.join()
    joining.join()
    assert joining.codes == {1: 2}
    assert find(address_file(tmp_path, _world(0))) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"local_world_size": 3}, "nodes have 5 workers together, and the launcher says 4"),
        ({"num_gpus": 8}, r"node 1 \(n2\) has 8 GPUs and the leader's node has"),
    ],
)
def test_nodes_that_do_not_fit_are_refused(tmp_path, here, change, message):
    world = _world(0, num_nodes=2)
    hub = Hub(world, tmp_path, StopRequest())
    found = []
    thread = threading.Thread(
        target=lambda: found.append(dial(hub._server.address, {**SAID, **change}))
    )
    thread.start()
    with pytest.raises(SpawnerError, match=message):
        hub.join(lambda: None, on_gpu=True, limit_s=20.0)
    thread.join()
    assert isinstance(found[0], Joined)
    found[0].channel.close()
    hub.end(ExitCode.HARNESS_ERROR)


@pytest.mark.parametrize(("boot_id", "host"), [("another machine", "HERE#1"), ("this one", "HERE")])
def test_two_machines_of_one_name_are_two_hosts(tmp_path, here, monkeypatch, boot_id, host):
    name = socket.gethostname()
    monkeypatch.setattr("harness.runtime.hub.boot_id", lambda: "this one")
    hub = Hub(_world(0, num_nodes=2), tmp_path, StopRequest())
    found = []
    said = {**SAID, "host": name, "boot_id": boot_id}
    thread = threading.Thread(target=lambda: found.append(dial(hub._server.address, said)))
    thread.start()
    hub.join(lambda: None, limit_s=20.0)
    thread.join()
    assert hub.nodes[1].host == host.replace("HERE", name)
    found[0].channel.close()
    hub.end(ExitCode.OK)
