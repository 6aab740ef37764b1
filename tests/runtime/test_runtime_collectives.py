"""Journaled collective calls on one rank, and what real ranks' journals tell of planted faults."""

import subprocess
import sys
from datetime import timedelta
from types import ModuleType

import pytest
import torch
import torch.distributed as dist

from harness.record.collective import CollectiveKind
from harness.record.verdict import Verdict
from harness.runtime import collectives
from harness.runtime.blame import exception_evidence
from harness.runtime.collective_entries import ENTRIES
from harness.runtime.journal import Journal, read_journal
from harness.runtime.judge import judge_attempt


@pytest.fixture
def group():
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.new_group([0], group_desc="CP")
    dist.destroy_process_group()
    collectives.uninstall()


@pytest.fixture
def recorded(tmp_path):
    """Run a function with its collectives journaled; return the calls."""

    def record(function):
        journal = Journal(tmp_path / "j", global_rank=0)
        try:
            with collectives.journaled(journal):
                function()
        finally:
            journal.close()
        content = read_journal(tmp_path / "j", global_rank=0)
        assert content.num_broken == 0
        return content.collectives

    return record


@pytest.fixture
def megatron_module(monkeypatch):
    """A module of the build that bound an entry point at import, as Megatron's do."""
    collectives.uninstall()  # another test of this process may have left the wrappers in place
    module = ModuleType("megatron.planted")
    monkeypatch.setitem(sys.modules, "megatron.planted", module)
    source = "def gather(*args, **kwargs):\n    return early(*args, **kwargs)\n"
    module.early = dist._all_gather_base
    exec(compile(source, "/site/megatron/planted.py", "exec"), vars(module))
    return module


def test_each_entry_point_is_journaled_with_its_tensors(group, recorded):
    one, four = torch.ones(4), [torch.empty(4)]

    def calls():
        dist.all_reduce(one, op=dist.ReduceOp.MAX, group=group)
        dist.all_gather(four, one, group=group)
        dist.all_gather_into_tensor(torch.empty(4), one, group=group)
        dist.reduce_scatter_tensor(torch.empty(4), one, group=group)
        dist.broadcast(one, 0, group)
        dist.broadcast(tensor=one, group_src=0)
        dist.barrier()
        dist.all_reduce(one.long()[:0], async_op=True).wait()

    found = recorded(calls)
    shown = [(c.group, c.label, c.sequence, c.operation, c.inputs, c.outputs) for c in found]
    assert shown == [
        ("1", "CP", 0, "all_reduce", ((4,),), ()),
        ("1", "CP", 1, "all_gather", ((4,),), ((4,),)),
        ("1", "CP", 2, "all_gather_into_tensor", ((4,),), ((4,),)),
        ("1", "CP", 3, "reduce_scatter_tensor", ((4,),), ((4,),)),
        ("1", "CP", 4, "broadcast", ((4,),), ()),
        ("0", "default_pg", 0, "broadcast", ((4,),), ()),
        ("0", "default_pg", 1, "barrier", (), ()),
        ("0", "default_pg", 2, "all_reduce", ((0,),), ()),
    ]
    assert [c.reduction for c in found[:2]] == ["MAX", ""]
    assert [c.peer for c in found[3:6]] == [None, 0, 0]
    assert [c.dtype for c in found[-3:]] == ["float32", "", "int64"]
    assert all(c.complete for c in found)
    assert [c.end for c in found] == ["returned"] * 7 + ["completed"]
    assert all(c.ranks == (0,) for c in found)
    assert all(c.at[0].startswith("test_runtime_collectives.py:") for c in found)


def test_an_asynchronous_call_is_complete_once_it_was_waited_for(group, recorded):
    found = recorded(lambda: dist.all_reduce(torch.ones(1), async_op=True))
    assert [(c.end, c.complete, c.stands) for c in found] == [("returned", False, False)]

    def waited():
        first = dist.all_reduce(torch.ones(1), async_op=True, group=group)
        dist.barrier()
        first.wait(timedelta(seconds=5))

    assert [(c.end, c.complete) for c in recorded(waited)] == [
        ("completed", True),
        ("returned", True),
    ]


def test_aliases_and_inner_calls_count_once_under_one_name(group, recorded):
    def calls():
        dist._all_gather_base(torch.empty(2), torch.ones(2))
        dist.all_gather_single(torch.empty(2), torch.ones(2))
        dist.all_gather_object([None], "x")
        dist.P2POp(dist.isend, torch.ones(1), 0)

    names = [call.operation for call in recorded(calls)]
    assert names == ["all_gather_into_tensor", "all_gather_into_tensor", "all_gather_object"]


def test_functional_collectives_are_journaled(group, recorded):
    import torch.distributed._functional_collectives as functional

    def calls():
        functional.all_reduce(torch.ones(3), "sum", group).sum()
        functional.all_gather_single(torch.ones(3), 0, "1").sum()

    found = recorded(calls)
    assert [(c.group, c.operation, c.inputs) for c in found] == [
        ("1", "all_reduce", ((3,),)),
        ("1", "all_gather_into_tensor", ((3,),)),
    ]
    assert not any(call.complete for call in found)


def test_names_bound_before_are_journaled_too_and_put_back(group, recorded, megatron_module):
    before, wait = megatron_module.early, dist.Work.wait
    (call,) = recorded(lambda: megatron_module.gather(torch.empty(2), torch.ones(2)))
    assert call.operation == "all_gather_into_tensor"
    assert call.at == ("megatron/planted.py:2",)
    assert megatron_module.early is not before
    assert dist.Work.wait is not wait
    collectives.uninstall()
    assert dist.Work.wait is wait
    assert megatron_module.early is before
    assert dist._all_gather_base is before


def test_modules_that_come_later_are_bound_again_and_the_others_left_alone(
    group, recorded, megatron_module, monkeypatch
):
    original = megatron_module.early
    recorded(lambda: None)
    megatron_module.early = original
    later = ModuleType("megatron.later")
    later.early = original
    monkeypatch.setitem(sys.modules, "megatron.later", later)
    recorded(lambda: None)
    assert later.early is not original
    assert megatron_module.early is original, "it was looked at before"


def test_an_error_is_journaled_raised_and_stays_the_build_s(group, recorded, megatron_module):
    caught = []

    def calls():
        for wrong in ({"group": "no group"}, {"input_tensor": "no tensor"}):
            given = {"output_tensor": torch.empty(2), "input_tensor": torch.ones(2)} | wrong
            with pytest.raises((AttributeError, TypeError, ValueError)) as found:
                megatron_module.gather(**given)
            caught.append(found.value)

    (call,) = recorded(calls)
    assert call.end == f"raised {type(caught[1]).__name__}"
    assert [exception_evidence(error).origin for error in caught] == ["build", "build"]


def test_outside_the_block_and_before_a_group_nothing_is_written(group, recorded, tmp_path):
    assert recorded(lambda: None) == ()
    size = (tmp_path / "j").stat().st_size
    dist.all_reduce(torch.ones(1))
    assert (tmp_path / "j").stat().st_size == size


def test_every_entry_point_of_the_table_is_there():
    missing = [entry.name for entry in ENTRIES if not hasattr(dist, entry.name)]
    assert set(missing) <= {"all_gather_single", "reduce_scatter_single"}, "names of newer releases"


def test_every_one_of_many_calls_is_kept(group, recorded):
    tensor = torch.ones(1)
    calls = recorded(lambda: [dist.all_reduce(tensor) for _ in range(1000)])
    assert [call.sequence for call in calls] == list(range(1000))
    assert {call.end for call in calls} == {"returned"}


def test_a_cut_journal_keeps_the_calls_before_the_cut(group, recorded, tmp_path):
    recorded(lambda: [dist.all_reduce(torch.ones(1)) for _ in range(2)])
    data = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(data[: data.rindex(b'"returned"')])
    content = read_journal(tmp_path / "j", global_rank=0)
    assert [call.end for call in content.collectives] == ["returned", None]
    assert content.num_broken == 1


def test_waiting_processes_do_not_import_torch():
    code = "import sys, harness.runtime.child; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def attempted(fresh, make_planned):
    """Run two ranks with an injected fault and judge what they left."""

    def attempt(*inject, time_s=20.0, engine="tiny_engine:execute"):
        item = make_planned(time_s=time_s)
        done = fresh(inject=inject, engine=engine).run(item, 1)
        facts = {"number": 1, "started_at": "", "duration_s": 0.0, "isolation": "scenario"}
        return judge_attempt(item.scenario, done.ranks, done.journals, **facts)

    return attempt


@pytest.mark.ranks
def test_a_healthy_attempt_has_calls_and_no_finding(attempted):
    attempt = attempted()
    assert attempt.verdict is Verdict.PASS
    for rank in attempt.ranks:
        assert rank.last_collective.complete
        assert rank.last_collective.sequence == 2
        assert rank.last_collective.at[0].startswith("tiny_engine.py:")


@pytest.mark.ranks
@pytest.mark.parametrize("kind", ["sleep", "sigstop"])
def test_a_rank_that_stays_away_is_named_with_the_call_its_peer_waits_in(attempted, kind):
    attempt = attempted(f"{kind}@1:select", time_s=1.0)
    fault = attempt.fault
    assert (fault.verdict, fault.global_rank, fault.victims) == (Verdict.HANG, 1, (0,))
    finding = fault.collective
    assert finding.kind is CollectiveKind.MISSING
    assert (finding.ranks, finding.waiting, finding.sequence) == ((1,), (0,), 1)
    assert "rank 0 in all_reduce #1 of group 1 (ranks 0, 1) at tiny_engine.py:" in fault.cause
    assert fault.cause.endswith("which rank 1 never called")
    assert [rank.last_collective.sequence for rank in attempt.ranks] == [1, 0]
    assert [rank.last_collective.end for rank in attempt.ranks] == [None, "returned"]


@pytest.mark.ranks
def test_a_rank_that_waits_for_an_asynchronous_call_is_no_culprit(attempted):
    attempt = attempted("sleep@1:select", time_s=1.5, engine="tiny_engine:asynchronous")
    waiting, asleep = attempt.ranks
    assert (waiting.last_collective.end, waiting.last_collective.blocking) == ("waiting", False)
    assert (waiting.waiting_in_collective, asleep.waiting_in_collective) == (True, False)
    assert (attempt.fault.verdict, attempt.fault.global_rank) == (Verdict.HANG, 1)
    assert attempt.fault.collective.kind is CollectiveKind.MISSING


@pytest.mark.ranks
def test_an_extra_collective_is_named(attempted):
    fault = attempted("extra_collective@1:select", time_s=1.0).fault
    assert (fault.verdict, fault.global_rank, fault.victims) == (Verdict.HANG, 1, (0,))
    assert fault.collective.kind is CollectiveKind.EXTRA
    assert "rank 1 alone in all_reduce #1 of group 0 default_pg" in fault.cause


@pytest.mark.ranks
@pytest.mark.parametrize("rank", [0, 1])
def test_a_mismatched_shape_is_named(attempted, rank):
    fault = attempted(f"mismatched_shape@{rank}:select").fault
    assert (fault.verdict, fault.global_rank) == (Verdict.CRASH, rank)
    finding = fault.collective
    assert (finding.kind, finding.field) == (CollectiveKind.MISMATCH, "shape")
    assert (finding.ranks, finding.sequence) == ((rank,), 1)
    assert f"rank {rank} made all_reduce float32 [4099]" in fault.cause


@pytest.mark.ranks
def test_a_rank_that_died_keeps_its_own_cause(attempted):
    fault = attempted("sigsegv@1:score").fault
    assert (fault.verdict, fault.global_rank) == (Verdict.CRASH, 1)
    assert "ended by signal SIGSEGV; rank 0 in all_reduce #1" in fault.cause
