"""Scenarios to ranks: capacity, devices, dealing out of logical ranks, selection, injections."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.record.verdict import ExitCode
from harness.runtime.options import Options, UsageError
from harness.runtime.plan import make_tasks, plan, select
from harness.runtime.task import Task
from harness.runtime.world import World
from harness.scenario.spec import Scenario


@dataclass
class Found:
    scenario: Scenario
    file: str = "s.yaml"
    line: int = 3


WORLD = World(world_size=4, local_world_size=4, launcher="torchrun")
OPTIONS = Options(scenarios=("s.yaml",))


def test_ranks_and_devices(make_scenario):
    loaded = [
        Found(make_scenario("a", ranks=2)),
        Found(make_scenario("b", ranks=32, level="scorer")),
        Found(make_scenario("c", ranks=2, level="scorer")),
    ]
    found = plan(loaded, WORLD, OPTIONS, num_gpus=0)
    assert [(item.num_ranks, item.device) for item in found] == [(2, "cpu"), (4, "cpu"), (2, "cpu")]
    assert found[0].file == "s.yaml:3"
    on_gpu = plan(loaded, WORLD, OPTIONS, num_gpus=4)
    assert {item.device for item in on_gpu} == {"cuda"}


def test_modelled_kernels_stay_on_the_cpu_beside_gpus(make_scenario):
    scenario = make_scenario("a", ranks=2)
    modelled = replace(scenario, kernels=replace(scenario.kernels, source="modelled"))
    assert plan([Found(modelled)], WORLD, OPTIONS, num_gpus=4)[0].device == "cpu"


def test_fewer_gpus_than_ranks_is_a_missing_capability(make_scenario):
    loaded = [
        Found(make_scenario("a", ranks=4)),
        Found(make_scenario("b", ranks=2)),
        Found(make_scenario("c", ranks=8, level="scorer")),
    ]
    found = plan(loaded, WORLD, OPTIONS, num_gpus=2)
    assert found[0].missing == "4 GPUs on this node, which has 2 (--ranks-per-gpu 2 shares them)"
    assert found[1].missing is None
    assert (found[2].missing, found[2].num_ranks) == (None, 2)


def test_ranks_may_share_a_gpu(make_scenario):
    loaded = [
        Found(make_scenario("a", ranks=4)),
        Found(make_scenario("b", ranks=4, level="scorer")),
    ]
    shared = replace(OPTIONS, ranks_per_gpu=4)
    found = plan(loaded, WORLD, shared, num_gpus=1)
    assert [(item.missing, item.num_ranks) for item in found] == [(None, 4), (None, 4)]
    half = plan(loaded, WORLD, replace(OPTIONS, ranks_per_gpu=2), num_gpus=1)
    assert half[0].missing == "2 GPUs on this node, which has 1 (--ranks-per-gpu 4 shares them)"


def test_too_few_ranks_are_said_for_every_scenario_at_once(make_scenario):
    loaded = [Found(make_scenario("a", ranks=8)), Found(make_scenario("b", ranks=16))]
    with pytest.raises(UsageError) as caught:
        plan(loaded, WORLD, OPTIONS, num_gpus=0)
    assert caught.value.problems[0] == (
        "s.yaml:3: a needs 8 ranks (context parallel 8 * tensor parallel 1), this run has 4; start "
        "it with --nproc-per-node 8 (dsa-harness run: --ranks 8), or use level: scorer, where any "
        "number of ranks serves"
    )
    assert len(caught.value.problems) == 2


def test_an_injection_that_hits_nothing_is_refused(make_scenario):
    loaded = [Found(make_scenario("tiny/a", ranks=2))]
    for text in ("sigsegv@1:score", "sigsegv@1:score@tiny"):
        plan(loaded, WORLD, replace(OPTIONS, inject=(text,)), num_gpus=0)
    for text in ("sigsegv@2:score", "sigsegv@1:score@other"):
        with pytest.raises(UsageError, match="no scenario of this run has that id and rank"):
            plan(loaded, WORLD, replace(OPTIONS, inject=(text,)), num_gpus=0)


def test_selection_by_id_and_tags(make_scenario):
    loaded = [
        Found(make_scenario("a/one", tags=("seed", "fast"))),
        Found(make_scenario("a/two", tags=("seed",))),
        Found(make_scenario("b/one")),
    ]

    def ids(**fields):
        chosen = select(loaded, replace(OPTIONS, **fields))
        return [item.scenario.id for item in chosen]

    assert ids() == ["a/one", "a/two", "b/one"]
    assert ids(keyword="a and not two") == ["a/one"]
    assert ids(tags=("seed",)) == ["a/one", "a/two"]
    assert ids(tags=("seed", "fast")) == ["a/one"]
    with pytest.raises(UsageError, match="expected") as caught:
        ids(keyword="a and")
    assert caught.value.exit_code is ExitCode.USAGE
    with pytest.raises(UsageError, match="none of 3 scenarios matches") as caught:
        ids(keyword="nowhere")
    assert caught.value.exit_code is ExitCode.NOTHING_RAN


def test_tasks_travel_as_json(make_planned):
    item = make_planned("tiny/t", ranks=3)
    tasks = make_tasks(
        item,
        attempt=2,
        folder=Path("/run/ranks/t/2"),
        store=Path("/tmp/store-1"),
        isolation="scenario",
        options=replace(OPTIONS, inject=("sleep@1:score",), megatron="/m"),
    )
    assert [task.global_rank for task in tasks] == [0, 1, 2]
    for task in tasks:
        assert Task.from_json(task.to_json()) == task
        assert "\n" not in task.to_json()
    assert tasks[1].journal == "/run/ranks/t/2/rank1.jsonl"
    assert tasks[1].stacks == "/run/ranks/t/2/rank1.stacks"
    assert tasks[0].limits.scenario_s == item.scenario.limits.time_s


def test_logical_ranks_are_dealt_out_in_turn(make_planned):
    item = replace(make_planned("tiny/s", ranks=7, level="scorer"), num_ranks=3)
    tasks = make_tasks(
        item,
        attempt=1,
        folder=Path("/f"),
        store=Path("/s"),
        isolation="scenario",
        options=OPTIONS,
    )
    assert [task.cp_ranks for task in tasks] == [(0, 3, 6), (1, 4), (2, 5)]


def test_what_may_share_processes(make_planned):
    base = make_planned("a")
    assert make_planned("b", time_s=1.0).group_key == base.group_key
    assert make_planned("c", ranks=3).group_key != base.group_key
    assert make_planned("d", level="model").group_key != base.group_key
    assert make_planned("e", overlays=("causal_offsets",)).group_key != base.group_key
    assert replace(base, device="cuda").group_key != base.group_key
