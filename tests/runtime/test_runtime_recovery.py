"""Attempts judged from files alone: what was in flight when everything was killed, and why."""

import json
from dataclasses import replace

import pytest

from harness.production.locate import find_build
from harness.record.evidence import ExceptionEvidence
from harness.record.files import read_record, result_path
from harness.record.path import PathEvidence
from harness.record.phase import Phase
from harness.record.result import RunRecord
from harness.record.selection import OverlapStats, SelectionEvidence
from harness.record.verdict import Outcome, Verdict
from harness.runtime.attempts import INTERRUPTED, Executed, utc_now
from harness.runtime.ends import AttemptBegin, RankEnd, append, read_ends
from harness.runtime.fingerprint import collect
from harness.runtime.journal import Journal, read_journal
from harness.runtime.options import Options, UsageError
from harness.runtime.plan_file import PlanError, RunPlan, read_plan, write_plan
from harness.runtime.preflight import check
from harness.runtime.recovery import recover
from harness.runtime.resume import attempts_due, differences
from harness.runtime.run_folder import RunFolder
from harness.runtime.run_lock import RunLock
from harness.runtime.storage import STORAGE_EXIT
from harness.runtime.verdicts import Verdicts
from harness.runtime.world import World

CUT = "the run was killed while it ran"


@pytest.fixture
def run(tmp_path, make_planned):
    """A run folder as a leader leaves it that was killed, with two scenarios of two ranks."""
    folder = RunFolder.create(tmp_path / "runs", "killed")
    items = (make_planned("tiny/one"), make_planned("tiny/two"))
    plan = RunPlan(
        options=Options(scenarios=("tiny.yaml",)),
        isolation="scenario",
        supervision="node",
        world=World(world_size=2, local_world_size=2, launcher="torchrun"),
        scenarios=items,
    )
    write_plan(folder.path, plan)
    folder.write_run(
        RunRecord(
            name="killed",
            started_at="",
            command=(),
            rerun="",
            world_size=2,
            num_nodes=1,
            isolation="scenario",
            environment=collect(find_build()),
            scenario_ids=tuple(item.scenario.id for item in items),
            state="running",
        )
    )
    return folder


def _evidence(rank):
    place = {"global_rank": rank, "cp_rank": rank, "microbatch": 0, "layer": 1, "seed": 0}
    yield PathEvidence(
        **place,
        backend="none",
        plan="packed_thd",
        plan_source="inferred",
        reason="",
        scorer="none",
        fused=True,
    )
    total = OverlapStats(rows=1, due=1, exact=1)
    yield SelectionEvidence(**place, stage="final", topk=16, reference_dtype="fp32", total=total)


def _attempt(run, *, number=1, whole=(), raised=None, in_collective=False):
    """Write the files of an attempt whose ranks stand in phase score, but for those named."""
    place = run.attempt_folder("tiny/one", number)
    append(place, AttemptBegin(started_at=utc_now(), isolation="scenario", num_ranks=2))
    for rank in range(2):
        journal = Journal(place / f"rank{rank}.jsonl", global_rank=rank)
        journal.phase(Phase.LAYOUT)
        journal.phase(Phase.SCORE)
        if rank in whole:
            for record in _evidence(rank):
                journal.evidence(record)
            journal.close()
        if rank == raised:
            journal.evidence(
                ExceptionEvidence(
                    type="ValueError",
                    text="bad",
                    traceback="",
                    origin="build",
                    in_collective=in_collective,
                )
            )
            journal.close("exception")
    return place


def _end(place, rank, status, **fields):
    append(place, RankEnd(global_rank=rank, pid=1, status=status, ended_s=1.0, **fields))


def _judged(run):
    found = recover(run.path)
    return found, found.results["tiny/one"]


def test_an_attempt_in_flight_is_labelled_and_the_rest_is_left_undone(run):
    _attempt(run)
    found, result = _judged(run)
    assert (result.verdict, result.last.cut_short) == (Verdict.INFRASTRUCTURE, CUT)
    assert result.outcome is Outcome.UNEXPECTED
    assert result.last.fault.phase is Phase.SCORE
    assert result.last.fault.victims == (0, 1)
    assert found.record.state == "killed"
    assert set(found.results) == {"tiny/one"}
    assert found.found == ("tiny/one",)


def test_a_second_look_finds_nothing_new(run):
    _attempt(run)
    recover(run.path)
    before = result_path(run.path, "tiny/one").read_bytes()
    assert recover(run.path).found == ()
    assert result_path(run.path, "tiny/one").read_bytes() == before


def test_ranks_that_all_came_to_their_end_are_judged_as_ever(run):
    _attempt(run, whole=(0, 1))
    assert _judged(run)[1].verdict is Verdict.PASS


def test_one_rank_that_did_not_is_no_pass(run):
    _attempt(run, whole=(0,))
    assert _judged(run)[1].last.cut_short == CUT


@pytest.mark.parametrize(
    ("status", "fields", "verdict"),
    [
        (-11, {}, Verdict.CRASH),
        (3, {}, Verdict.CRASH),
        (-9, {"killed": True, "deadline": Phase.SCORE}, Verdict.HANG),
        # Whoever killed the run may have sent these to the rank as well.
        (-9, {}, Verdict.INFRASTRUCTURE),
        (-15, {}, Verdict.INFRASTRUCTURE),
        (-9, {"killed": True}, Verdict.INFRASTRUCTURE),
        (STORAGE_EXIT, {}, Verdict.INFRASTRUCTURE),
    ],
)
def test_an_end_that_the_supervisor_saw_counts_as_far_as_it_is_the_ranks_own(
    run, status, fields, verdict
):
    _end(_attempt(run), 1, status, **fields)
    _, result = _judged(run)
    assert result.verdict is verdict
    assert (result.last.cut_short is None) is (verdict is not Verdict.INFRASTRUCTURE)
    if verdict is not Verdict.INFRASTRUCTURE:
        assert result.last.fault.global_rank == 1
        assert result.last.fault.victims == (0,)


@pytest.mark.parametrize(("echo", "verdict"), [(False, "crash"), (True, "infrastructure")])
def test_an_exception_in_a_journal_counts_unless_it_echoes_an_end(run, echo, verdict):
    _attempt(run, raised=0, in_collective=echo)
    assert str(_judged(run)[1].verdict) == verdict


def test_what_the_leader_wrote_at_the_end_is_taken_as_it_is(run, make_planned):
    place = _attempt(run, whole=(0, 1))
    done = Executed(
        ranks=(),
        journals=(),
        started_at=utc_now(),
        duration_s=12.5,
        isolation="scenario",
        shared_with=(make_planned("tiny/two"),),
    )
    append(place, done.end)
    _, result = _judged(run)
    assert result.last.duration_s == 12.5
    assert [note.text for note in result.last.notes if "shared" in note.topic] == ["tiny/two"]


def test_cut_lines_of_the_leaders_journal_are_skipped(run):
    place = _attempt(run)
    _end(place, 0, 0)
    with open(place / "ends.jsonl", "ab") as file:
        file.write(b'{"e": "rank", "data": {"global_rank": 1, "sta')
    ends = read_ends(place)
    assert (ends.begin.num_ranks, set(ends.ranks), ends.end) == (2, {0}, None)


def test_a_kept_attempt_is_no_trial_and_a_later_one_decides(run):
    _attempt(run)
    found, cut = _judged(run)
    item = found.plan.scenarios[0]
    assert attempts_due(item, cut) == 1
    _attempt(run, number=2, whole=(0, 1))
    _, result = _judged(run)
    assert [str(a.verdict) for a in result.attempts] == ["infrastructure", "pass"]
    assert (result.verdict, result.outcome) == (Verdict.PASS, Outcome.EXPECTED)
    assert result.rates == {}, "one trial has no rate"
    assert attempts_due(item, result) == 0
    assert attempts_due(replace(item, repeat=3), result) == 2
    assert attempts_due(item, None) == 1
    assert attempts_due(replace(item, missing="a GPU", repeat=3), None) == 1


def test_an_interrupted_attempt_is_told_from_a_killed_one(make_planned, tmp_path):
    verdicts = Verdicts("harness.runtime.judge", ())
    item = make_planned("tiny/one")
    done = Executed(
        ranks=(),
        journals=(read_journal(tmp_path / "none", global_rank=0),),
        started_at=utc_now(),
        duration_s=0.0,
        isolation="scenario",
        cut_short=INTERRUPTED,
    )
    assert verdicts.attempt(item, 1, done).cut_short == INTERRUPTED
    assert verdicts.attempt(item, 1, replace(done, cut_short=None)).cut_short is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan.unlink(), "expected a run folder with plan.json, found none"),
        (lambda plan: plan.write_text("{}"), "expected plan_version 1, found None"),
        (lambda plan: plan.write_text('{"plan_version": 2}'), "expected plan_version 1, found 2"),
        (lambda plan: plan.write_text("{"), "cut or no JSON"),
        (lambda plan: plan.write_text('{"plan_version": 1}'), "start the run anew"),
    ],
)
def test_a_folder_without_a_usable_plan(run, change, message):
    change(run.path / "plan.json")
    with pytest.raises(PlanError, match=message):
        read_plan(run.path)


def test_a_path_that_is_no_folder(tmp_path):
    with pytest.raises(PlanError, match="found nothing of that name"):
        read_plan(tmp_path / "none")


def test_a_plan_comes_back_as_it_was(run):
    plan = read_plan(run.path)
    assert [item.scenario.id for item in plan.scenarios] == ["tiny/one", "tiny/two"]
    write_plan(run.path, plan)
    assert read_plan(run.path) == plan
    assert json.loads((run.path / "plan.json").read_text())["plan_version"] == 1


def test_versions_and_builds_that_moved_are_named():
    now = collect()
    assert list(differences(now, now)) == []
    before = replace(now, torch="1.0", megatron_commit="abc", host="elsewhere", variables={})
    texts = list(differences(before, now))
    assert len(texts) == 2
    assert texts[0].startswith(f"--resume: torch was 1.0 when the run started and is {now.torch}")


WORLD = World(world_size=2, local_world_size=2, launcher="torchrun")


def test_a_resume_is_checked_before_anything_is_written(run):
    _attempt(run, whole=(0, 1))
    recover(run.path)
    record = read_record(run.path / "run.json", RunRecord)
    moved = replace(record.environment, cudnn_frontend="1.0", megatron_core="0.1")
    run.write_run(replace(record, environment=moved))
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    found = check(WORLD, Options(resume=str(run.path), jobs=2))
    assert [text.split()[1] for text in found.warnings] == ["megatron_core", "cudnn_frontend"]
    assert found.done == {"tiny/one"}
    assert (found.options.scenarios, found.options.jobs) == (("tiny.yaml",), 2)
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_a_resume_names_all_that_is_in_its_way(run):
    with pytest.raises(UsageError) as caught:
        check(replace(WORLD, world_size=1, local_world_size=1), Options(resume=str(run.path)))
    assert len(caught.value.problems) == 2, "each scenario that needs more ranks"
    plan = read_plan(run.path)
    on_gpu = tuple(replace(item, device="cuda") for item in plan.scenarios)
    write_plan(run.path, replace(plan, scenarios=on_gpu))
    with pytest.raises(UsageError, match="was planned on a GPU, of which this node has none"):
        check(WORLD, Options(resume=str(run.path)))
    lock = RunLock(run.path)
    with pytest.raises(UsageError, match="expected a run that nobody writes"):
        check(WORLD, Options(resume=str(run.path)))
    lock.release()
