"""Runs over two nodes: two torchruns on this machine, four ranks, one run folder."""

import json
import os
import signal
import socket
import time

import pytest
from run_session import ROOT, Session

from harness.record.codec import to_jsonable
from harness.record.phase import Phase
from harness.record.verdict import Outcome, Verdict

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(400)]

SCRIPT = str(ROOT / "launch" / "run.py")
QUICKSTART = str(ROOT / "scenarios" / "quickstart")
TINY = ("--engine", "tiny_engine:execute")

_DIFFER = {"started_at", "host", "pid", "address", "rerun", "last_line", "peak_rss_bytes"}
"""What may differ between equal runs, beside all that is a time."""


class TwoNodes(Session):
    """Two torchruns that form one run."""

    def __init__(self, folder):
        super().__init__(folder)
        # Bound and never listening: the port stays ours until the first torchrun listens on it,
        # which SO_REUSEADDR on both sides allows.
        self._hold = socket.socket()
        self._hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._hold.bind(("127.0.0.1", 0))

    def node(self, index, *words):
        self.output = self.folder / f"node{index}.txt"
        port = str(self._hold.getsockname()[1])
        launcher = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
        launcher += ["--node-rank", str(index), "--master-addr", "127.0.0.1"]
        return self.start(*launcher, "--master-port", port, SCRIPT, *words)

    def launch(self, *words):
        return [self.node(index, *words) for index in (0, 1)]

    def end(self, processes, timeout_s=200):
        codes = [process.wait(timeout=timeout_s) for process in processes]
        return codes, self.said(0), self.said(1)

    def said(self, index):
        return (self.folder / f"node{index}.txt").read_text()

    def scenarios(self, *names, time_s=60):
        paths = super().scenarios(*names, time_s=time_s)
        for path in paths:
            with open(path) as stream:
                text = stream.read().replace("context_parallel_size: 2", "context_parallel_size: 4")
            with open(path, "w") as stream:
                stream.write(text)
        return paths

    def close(self):
        self._hold.close()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def nodes(tmp_path):
    made = TwoNodes(tmp_path)
    yield made
    made.close()


def _own_words(text):
    """Lines that are not torchrun's."""
    before = text.partition("torch/distributed")[0].splitlines()[:-1]
    return before if "torch/distributed" in text else text.splitlines()


def test_a_fault_on_the_second_node_is_named_and_the_next_scenario_passes(nodes):
    paths = nodes.scenarios("first", "second", "third")
    processes = nodes.launch(*paths, *TINY, "--inject", "sigsegv@3:score@second")
    codes, first, second = nodes.end(processes)
    assert codes == [1, 1], first + second
    results = nodes.results()
    verdicts = {name: str(result.verdict) for name, result in results.items()}
    assert verdicts == {"tiny/first": "pass", "tiny/second": "crash", "tiny/third": "pass"}, first
    fault = results["tiny/second"].last.fault
    assert (fault.global_rank, fault.phase) == (3, Phase.SCORE)
    ranks = results["tiny/second"].last.ranks
    assert ranks[3].signal == signal.SIGSEGV
    assert "tiny_engine" in (nodes.run_folder() / ranks[3].stacks).read_text()
    record = nodes.record()
    assert (record.exit_code, record.num_nodes, record.world_size) == (4, 2, 4)
    assert "exit code 4" in first
    assert _own_words(second) == [], "a follower is silent"
    assert [path.name for path in (nodes.folder / "runs").iterdir()] == [nodes.run_folder().name]
    nodes.assert_gone_within(5.0)


def test_a_node_that_is_killed_leaves_a_whole_report_and_the_run_can_be_finished(nodes):
    paths = nodes.scenarios("first", "second", "third")
    processes = nodes.launch(*paths, *TINY, "--inject", "sleep@3:score@second")
    nodes.wait_for_phase("score", processes[1], scenario="tiny_second", rank=3, limit_s=120)
    begin_s = time.monotonic()
    os.kill(processes[1].pid, signal.SIGKILL)
    codes, first, _ = nodes.end(processes)
    assert time.monotonic() - begin_s < 60
    assert codes == [1, -signal.SIGKILL], first
    nodes.assert_gone_within(5.0)
    results = nodes.results()
    assert [str(results[f"tiny/{n}"].verdict) for n in ("first", "second", "third")] == [
        "pass",
        "infrastructure",
        "not_run",
    ]
    lost = f"node 1 ({socket.gethostname()}) was lost: its connection closed"
    second = results["tiny/second"].last
    assert (second.fault.verdict, second.cut_short) == (Verdict.INFRASTRUCTURE, lost)
    assert [rank.node_lost for rank in second.ranks] == [None, None, lost, lost]
    assert results["tiny/third"].last.missing_capability == lost
    assert nodes.record().exit_code == 4
    report = (nodes.run_folder() / "report.md").read_text()
    assert lost in report

    # The planted fault is part of the plan; taken out, the run can come to its end.
    plan = nodes.run_folder() / "plan.json"
    data = json.loads(plan.read_text())
    data["options"]["inject"] = []
    plan.write_text(json.dumps(data))
    folder = str(nodes.run_folder())
    codes, first, second = nodes.end(nodes.launch("--resume", folder))
    assert codes == [0, 0], first + second
    results = nodes.results()
    assert {str(result.verdict) for result in results.values()} == {"pass"}
    assert len(results["tiny/first"].attempts) == 1, "what ran is not run again"
    assert nodes.record().exit_code == 0
    nodes.assert_gone_within(5.0)


@pytest.mark.slow
def test_the_leader_s_node_killed_leaves_a_report_by_the_other(nodes):
    paths = nodes.scenarios("first", "second", "third")
    processes = nodes.launch(*paths, *TINY, "--inject", "sleep@1:score@second")
    nodes.wait_for_phase("score", processes[0], scenario="tiny_second", rank=3, limit_s=120)
    os.kill(processes[0].pid, signal.SIGKILL)
    codes, _, second = nodes.end(processes)
    assert codes == [-signal.SIGKILL, 1], second
    nodes.assert_gone_within(5.0)
    assert nodes.record().state == "killed"
    results = nodes.results()
    assert str(results["tiny/first"].verdict) == "pass"
    assert str(results["tiny/second"].verdict) == "infrastructure"
    assert "the leader of the run is gone" in second
    report = (nodes.run_folder() / "report.md").read_text()
    for name in ("tiny/first", "tiny/second"):
        assert name in report
    assert [path.name for path in (nodes.folder / "runs").iterdir()] == [nodes.run_folder().name]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("index", "number", "code"),
    [(0, signal.SIGTERM, 143), (1, signal.SIGTERM, 143), (1, signal.SIGINT, 130)],
)
def test_a_signal_on_either_node_ends_both(nodes, index, number, code):
    paths = nodes.scenarios("first", "second", "third")
    processes = nodes.launch(*paths, *TINY, "--inject", "sleep@3:score@second")
    nodes.wait_for_phase("score", processes[1], scenario="tiny_second", rank=3, limit_s=120)
    begin_s = time.monotonic()
    processes[index].send_signal(number)
    codes, first, second = nodes.end(processes)
    assert time.monotonic() - begin_s < 60
    assert all(codes), first + second
    nodes.assert_gone_within(5.0)
    record = nodes.record()
    assert (record.exit_code, record.state) == (code, "interrupted")
    assert nodes.results()["tiny/second"].last.cut_short == "the run was interrupted while it ran"


@pytest.mark.slow
def test_a_bad_file_is_said_once_and_nothing_is_written(nodes):
    (path,) = nodes.scenarios("first")
    with open(path, "a") as stream:
        stream.write("modle: small\n")
    codes, first, second = nodes.end(nodes.launch(path, *TINY))
    assert codes == [1, 1]
    assert len(_own_words(first)) == 1, first
    assert "modle" in _own_words(first)[0]
    assert _own_words(second) == []
    assert not (nodes.folder / "runs").exists()


@pytest.mark.slow
def test_a_rank_that_hangs_on_the_second_node_is_named(nodes):
    paths = nodes.scenarios("first", time_s=10)
    processes = nodes.launch(*paths, *TINY, "--inject", "sigstop@2:score")
    codes, first, _ = nodes.end(processes)
    assert codes == [1, 1], first
    last = nodes.results()["tiny/first"].last
    assert (str(last.verdict), last.fault.global_rank) == ("hang", 2)
    assert last.ranks[2].process_state == "T", "seen by the follower of its node"
    nodes.assert_gone_within(5.0)


@pytest.mark.slow
@pytest.mark.parametrize("supervision", ["node", "worker"])
def test_shared_processes_over_two_nodes(nodes, supervision):
    paths = nodes.scenarios("first", "second", "third")
    words = ["--isolation", "group", "--supervision", supervision]
    processes = nodes.launch(*paths, *TINY, *words, "--inject", "sigkill@2:score@second")
    codes, first, second = nodes.end(processes)
    assert codes == [1, 1], first + second
    results = nodes.results()
    isolations = [a.isolation for a in results["tiny/first"].attempts]
    assert isolations == ["group", "scenario"]
    assert results["tiny/second"].last.fault.global_rank == 2
    assert str(results["tiny/third"].verdict) == "pass"
    nodes.assert_gone_within(5.0)


def _comparable(value):
    if isinstance(value, dict):
        kept = {key for key in value if key not in _DIFFER and not key.endswith("_s")}
        return {key: _comparable(value[key]) for key in kept}
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    return value


@pytest.mark.slow
def test_the_quick_start_over_two_nodes_equals_that_on_one(nodes, tmp_path_factory):
    words = ["--scenario", QUICKSTART, "-k", "cp4"]
    codes, first, second = nodes.end(nodes.launch(*words), timeout_s=300)
    assert codes == [0, 0], first + second
    alone = Session(tmp_path_factory.mktemp("alone"))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    code, output = alone.finish(alone.start(*launcher, SCRIPT, *words), timeout_s=300)
    assert code == 0, output
    over_two, on_one = nodes.results(), alone.results()
    assert len(over_two) == len(on_one) >= 4
    assert {result.outcome for result in over_two.values()} == {Outcome.EXPECTED, Outcome.KNOWN}
    for name, result in over_two.items():
        assert _comparable(to_jsonable(result)) == _comparable(to_jsonable(on_one[name])), name
    assert (nodes.record().num_nodes, alone.record().num_nodes) == (2, 1)
