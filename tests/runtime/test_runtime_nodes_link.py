"""The link between nodes: who may join, what a cut or foreign message does, who is waited for."""

import json
import os
import socket
import stat
import threading
import time

import pytest

from harness.runtime.address import (
    Address,
    address_file,
    find,
    interface_of,
    own_hosts,
    plain,
    publish,
    withdraw,
)
from harness.runtime.link import Joined, LinkError, LinkServer, dial, join_run
from harness.runtime.world import World

HERE = ("127.0.0.1",)


@pytest.fixture
def server():
    made = LinkServer(HERE)
    yield made
    made.close()


def _dial_in_thread(address, hello):
    found = []
    thread = threading.Thread(target=lambda: found.append(dial(address, hello)))
    thread.start()
    return thread, found


def _connect(server):
    return socket.create_connection(("127.0.0.1", server.address.port), timeout=5)


def test_who_knows_the_token_is_welcomed(server):
    thread, found = _dial_in_thread(server.address, {"node": 1})
    hello = server.expect(lambda said: said.get("node") == 1, 10.0)
    thread.join()
    (joined,) = found
    assert isinstance(joined, Joined)
    assert hello.said == {"node": 1, "interface": "lo"}, "the token goes no further"
    joined.channel.send({"text": "x" * 100_000})
    assert len(hello.channel.receive(5.0)["text"]) == 100_000
    joined.channel.close()
    assert hello.channel.receive(5.0) is None
    assert hello.channel.closed
    hello.channel.close()


def test_another_token_is_refused(server):
    wrong = Address(hosts=HERE, port=server.address.port, token="of another run")
    thread, found = _dial_in_thread(wrong, {"node": 1})
    assert server.expect(lambda said: True, 1.0) is None
    thread.join()
    assert found == [
        f"127.0.0.1:{server.address.port} refused it: another token than this run's",
    ]


@pytest.mark.parametrize(
    "text",
    [b"", b'{"node": 1, "tok', b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"{}\n", b"x" * 100_000],
)
def test_strangers_and_cut_messages_join_nothing(server, text):
    with _connect(server) as stranger:
        stranger.sendall(text)
        if len(text) < 100_000:
            stranger.shutdown(socket.SHUT_WR)
        assert server.expect(lambda said: True, 0.5) is None
        stranger.settimeout(5)
        try:
            answer = stranger.recv(1 << 12)
        except ConnectionResetError:  # what it sent was never read to its end
            answer = b""
        assert answer == b"" or b"refused" in answer


def test_a_silent_stranger_holds_nobody_up(server):
    with _connect(server), _connect(server):
        thread, found = _dial_in_thread(server.address, {"node": 1})
        begin_s = time.monotonic()
        hello = server.expect(lambda said: said.get("node") == 1, 10.0)
        thread.join()
        assert hello is not None
        assert time.monotonic() - begin_s < 5.0
        hello.channel.close()
        found[0].channel.close()


def test_peers_are_told_apart_whatever_order_they_come_in(server):
    two, found_two = _dial_in_thread(server.address, {"member": "two"})
    second = server.expect(lambda said: said.get("member") == "none", 0.3)
    assert second is None
    one, found_one = _dial_in_thread(server.address, {"node": 1})
    node = server.expect(lambda said: "node" in said, 10.0)
    member = server.expect(lambda said: said.get("member") == "two", 10.0)
    assert (node.said["node"], member.said["member"]) == (1, "two")
    for thread, found, hello in ((one, found_one, node), (two, found_two, member)):
        thread.join()
        found[0].channel.close()
        hello.channel.close()


def test_an_address_is_whole_for_its_user_only_and_gone_afterwards(tmp_path):
    file = address_file(tmp_path, World(run_id="job/7"))
    assert file.parent == tmp_path
    assert file.name.startswith(".nodes-")
    address = Address(hosts=("n1", "10.0.0.1"), port=4711, token="abc")
    assert find(file) is None
    publish(file, address)
    assert find(file) == address
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [file.name]
    publish(file, Address(hosts=HERE, port=1, token="another leader"))
    withdraw(file, address)
    assert find(file) is not None, "only its own"
    withdraw(file, find(file))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"hosts": ["a"]}', '{"hosts": 1, "port": 2}'])
def test_an_address_that_cannot_be_read_is_none(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    assert find(tmp_path / "a.json") is None


def test_runs_do_not_find_each_other(tmp_path):
    worlds = [
        World(run_id="a"),
        World(run_id="b"),
        World(run_id="a", restart_count=1),
        World.from_environment(_torchrun("none", "29500")),
        World.from_environment(_torchrun("none", "29501")),
    ]
    files = {address_file(tmp_path, world) for world in worlds}
    assert len(files) == len(worlds)
    first, second = (World.from_environment(_torchrun("none", "1", rank=r)) for r in (0, 3))
    assert address_file(tmp_path, first) == address_file(tmp_path, second)


def _torchrun(name, port, rank=0):
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % 2),
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": str(rank // 2),
        "GROUP_WORLD_SIZE": "2",
        "TORCHELASTIC_RUN_ID": name,
        "MASTER_ADDR": "n1",
        "MASTER_PORT": port,
    }


def test_a_folder_that_is_not_shared_is_said(tmp_path):
    file = tmp_path / "missing" / ".nodes-a-0.json"
    with pytest.raises(LinkError, match=r"node 1 \(n2\) does not see .*expected --out on a file"):
        join_run(file, {"node": 1}, who="node 1 (n2)", limit_s=0.3)


def test_an_address_of_a_run_long_gone_is_said(tmp_path):
    server = LinkServer(HERE)
    server.close()
    file = tmp_path / "a.json"
    publish(file, server.address)
    with pytest.raises(LinkError, match=r"cannot reach the leader .*Connection refused"):
        join_run(file, {"node": 1}, who="node 1 (n2)", limit_s=0.5)


def test_a_stale_address_is_read_again_until_the_leader_is_there(tmp_path, server):
    gone = LinkServer(HERE)
    gone.close()
    file = tmp_path / "a.json"
    publish(file, gone.address)
    timer = threading.Timer(0.4, publish, (file, server.address))
    timer.start()
    expecting = threading.Thread(target=server.expect, args=(lambda said: False, 5.0))
    expecting.start()
    joined = join_run(file, {"node": 1}, who="node 1", limit_s=20.0)
    joined.channel.close()
    timer.join()
    expecting.join()


def test_a_port_that_somebody_else_has_now_is_no_leader(tmp_path):
    def answer(listener):
        connection, _ = listener.accept()
        connection.recv(100)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = threading.Thread(target=answer, args=(listener,))
        other.start()
        port = listener.getsockname()[1]
        found = dial(Address(hosts=HERE, port=port, token="abc"), {"node": 1})
        other.join()
    assert found == f"127.0.0.1:{port} gave no answer"


def test_waiting_for_a_leader_can_be_stopped(tmp_path):
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        join_run(tmp_path / "a.json", {}, who="node 1", limit_s=20.0, check=stop)


def test_hosts_by_which_a_node_is_found():
    assert own_hosts({"MASTER_ADDR": "127.0.0.1"}) == HERE, "all nodes are this one"
    hosts = own_hosts({"MASTER_ADDR": "head"})
    assert hosts[0] == "head"
    assert socket.gethostname() in hosts
    assert len(set(hosts)) == len(hosts)


@pytest.mark.parametrize(
    ("number", "name"), [("127.0.1.2", "lo"), ("10.1.2.3", "eth0"), ("10.9.9.9", "")]
)
def test_interface_of_an_address(number, name):
    assert interface_of(number, (("lo", "127.0.0.1"), ("eth0", "10.1.2.3"))) == name


def test_an_ipv4_address_in_ipv6_clothes():
    assert plain("::ffff:10.1.2.3") == "10.1.2.3"
    assert plain("10.1.2.3") == "10.1.2.3"
    assert plain("fd00::1") == "fd00::1"


def test_an_address_travels_as_one_line(server):
    from harness.runtime.address import address_from_json, address_to_json

    line = address_to_json(server.address)
    assert "\n" not in line
    assert address_from_json(line) == server.address
    assert json.loads(line)["port"] == server.address.port
