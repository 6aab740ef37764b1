"""Where ranks go over several nodes, how they meet, and what a lost node makes of an attempt."""

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from harness.record.phase import Phase
from harness.record.result import RankOutcome
from harness.record.verdict import Verdict
from harness.runtime import commands
from harness.runtime.first_fault import first_fault
from harness.runtime.limits import PhaseLimits
from harness.runtime.options import Options, UsageError
from harness.runtime.plan import plan
from harness.runtime.preflight import check
from harness.runtime.rank_layout import NodeShare, RankLayout
from harness.runtime.rendezvous import open_store
from harness.runtime.run_lock import LOCK_FILE, forget_leader, live_holder
from harness.runtime.supervisor import Watch
from harness.runtime.task import Task
from harness.runtime.world import World

TWO = World(world_size=4, local_world_size=2, num_nodes=2, launcher="torchrun")


def _layout(*workers):
    shares = tuple(
        NodeShare(workers=count, num_cpus=8, interface=f"eth{index}")
        for index, count in enumerate(workers)
    )
    return RankLayout(shares=shares, address="10.0.0.1")


def _tasks(scenario, count):
    return tuple(
        Task(
            scenario=scenario,
            global_rank=rank,
            local_rank=rank,
            world_size=count,
            store="/scratch/store-1",
            folder="/runs/r/ranks/a/1",
        )
        for rank in range(count)
    )


def test_ranks_fill_one_node_after_the_other(make_scenario):
    tasks = _layout(2, 3).place(_tasks(make_scenario(), 4))
    assert [(t.place.node, t.local_rank, t.worker) for t in tasks] == [
        (0, 0, 0),
        (0, 1, 1),
        (1, 0, 2),
        (1, 1, 3),
    ]
    assert {t.store for t in tasks} == {"/runs/r/ranks/a/1/store.json"}
    assert {t.place.address for t in tasks} == {"10.0.0.1"}
    assert [t.place.interface for t in tasks] == ["eth0", "eth0", "eth1", "eth1"]
    assert {t.place.local_world_size for t in tasks} == {2}
    assert {t.num_threads for t in tasks} == {4}
    assert Task.from_json(tasks[3].to_json()) == tasks[3]


def test_ranks_that_fit_on_one_node_meet_over_a_file(make_scenario):
    tasks = _tasks(make_scenario(), 2)
    assert _layout(2, 2).place(tasks) == tasks


def _ranks(**second):
    fields = {"exit_code": None, "last_phase": Phase.SCORE, "host": "n1"}
    lost = {"node_lost": "node 1 (n2) was lost: its connection closed", "host": "n2"}
    return [
        RankOutcome(global_rank=0, **fields | {"ended_by_harness": True}),
        RankOutcome(global_rank=1, **fields | lost | second),
    ]


def test_a_lost_node_is_the_infrastructure_s():
    fault = first_fault(_ranks())
    assert fault.verdict is Verdict.INFRASTRUCTURE
    assert "node 1 (n2) was lost" in fault.cause
    assert fault.victims == (0,)


def test_a_rank_that_failed_by_itself_is_named_before_a_lost_node():
    ranks = _ranks()
    ranks[0] = replace(ranks[0], ended_by_harness=False, signal=11)
    fault = first_fault(ranks)
    assert (fault.verdict, fault.global_rank) == (Verdict.CRASH, 0)


def test_ranks_of_several_nodes_meet_at_the_store_of_rank_0(make_scenario, tmp_path):
    tasks = [
        replace(task, folder=str(tmp_path), store=str(tmp_path / "store.json"))
        for task in _layout(1, 1).place(_tasks(make_scenario(), 2))
    ]
    tasks = [replace(t, place=replace(t.place, address="127.0.0.1")) for t in tasks]
    stores = {}
    thread = threading.Thread(target=lambda: stores.update({1: open_store(tasks[1])}))
    thread.start()
    stores[0] = open_store(tasks[0])
    thread.join(30)
    stores[0].set("key", "value")
    assert stores[1].get("key") == b"value"
    assert [path.name for path in Path(tmp_path).iterdir()] == ["store.json"]


def test_a_store_that_is_never_published_is_said(make_scenario, tmp_path):
    task = replace(
        _layout(1, 1).place(_tasks(make_scenario(), 2))[1], store=str(tmp_path / "store.json")
    )
    task = replace(task, limits=replace(task.limits, rendezvous_s=0.1))
    with pytest.raises(TimeoutError, match="is the run folder shared between the nodes"):
        open_store(task)


class Elsewhere:
    """A process on a host whose clock started at another time."""

    def __init__(self, offset_s):
        self.node = self
        self.offset_s = offset_s
        self.pid = 1
        self.lost = None
        self.ended_s = 5.0

    def poll(self):
        return None


def test_times_of_another_host_are_put_on_this_clock(make_scenario, tmp_path):
    task = replace(_tasks(make_scenario(), 1)[0], folder=str(tmp_path))
    lines = [{"t": 3.0, "e": "phase", "phase": "build"}, {"t": 4.0, "e": "phase", "phase": "score"}]
    Path(task.journal).write_text("".join(json.dumps(line) + "\n" for line in lines))
    now = time.monotonic()
    watch = Watch(task, Elsewhere(now - 14.0), now)
    watch.look(now)
    phase, begin_s = watch.last_phase()
    assert phase is Phase.SCORE
    assert begin_s == pytest.approx(now - 10.0)
    assert watch.left_s(now, PhaseLimits(scenario_s=60.0)) == pytest.approx(50.0)


class Loaded:
    def __init__(self, scenario):
        self.scenario = scenario
        self.file, self.line = "a.yaml", 1


@pytest.mark.parametrize(("num_gpus", "missing"), [(4, None), (2, "each of 2 nodes"), (0, None)])
def test_every_node_needs_gpus_for_its_own_ranks(make_scenario, num_gpus, missing):
    (item,) = plan([Loaded(make_scenario(ranks=4))], TWO, _options(), num_gpus=num_gpus)
    assert item.device == ("cuda" if num_gpus else "cpu")
    if missing is None:
        assert item.missing is None
    else:
        assert item.missing == "2 GPUs on each of 2 nodes, which have 1 each"


def _options(**fields):
    return Options(scenarios=("a.yaml",), **fields)


def test_workers_of_the_launcher_run_on_one_node(tmp_path):
    options = _options(isolation="none", out=str(tmp_path))
    with pytest.raises(UsageError, match="--isolation none: expected a run on one node, found 2"):
        check(TWO, options)
    with pytest.raises(UsageError) as found:
        check(TWO, replace(options, isolation="group"))
    assert "isolation" not in str(found.value), "only the file is missing"


@pytest.mark.parametrize(
    ("world", "words"),
    [
        (TWO, "torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint "),
        (replace(TWO, launcher="srun"), "srun --nodes=2 --ntasks=4 "),
        (World(world_size=4, local_world_size=4), "torchrun --standalone --nproc-per-node 4 "),
    ],
)
def test_the_command_that_repeats_a_run_has_its_nodes(world, words):
    assert commands.rerun_run(world, _options()).startswith(words)


def test_the_sign_of_a_leader_that_is_gone_can_be_taken_away(tmp_path):
    lock = tmp_path / LOCK_FILE
    lock.write_text('{"host": "another-host", "pid": 7}\n')
    os.utime(lock)
    assert "process 7 on another-host" in live_holder(tmp_path)
    forget_leader(tmp_path)
    assert live_holder(tmp_path) is None


def test_the_sign_of_a_leader_that_lives_stays(tmp_path):
    from harness.runtime.run_lock import RunLock

    held = RunLock(tmp_path)
    forget_leader(tmp_path)
    assert live_holder(tmp_path) is not None
    held.release()
