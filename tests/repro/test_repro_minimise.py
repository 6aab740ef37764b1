"""Minimising with an evaluator that answers by a rule: what is kept, dropped, saved and resumed."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from repro_fakes import Fake, crashed, missing, passed, scenario

from harness.repro.memory import Memory
from harness.repro.minimise import Acceptance, Minimiser, NothingToMinimiseError
from harness.repro.minimise_report import (
    Files,
    SignatureFileError,
    minimise_lines,
    read_signature,
)
from harness.repro.reduce_packs import rounder
from harness.repro.reductions import REDUCTIONS, cost
from harness.repro.reshape import ladder, subsets, with_cp, with_packs
from harness.repro.search_histories import sound
from harness.repro.signature import Signature
from harness.scenario.loader import load
from harness.scenario.spec import MicrobatchSpec, ParallelSpec, TrainingSpec


def total(case, index=0):
    return sum(case.microbatches[index].sequences)


def long_packs(case, before):
    """A fault of packs above 11 tokens where rows see more keys than are picked."""
    faulty = any(sum(p.sequences) > max(11, case.model.dsa_indexer_topk) for p in case.microbatches)
    return crashed() if faulty else passed()


def minimise(rule, case=None, **options):
    fake = Fake(rule)
    report = Minimiser(scenario=case or scenario(), evaluator=fake, **options).run()
    return report, fake


def test_everything_that_the_fault_does_not_need_is_removed():
    report, fake = minimise(long_packs)
    small = report.scenario
    assert report.ending == "smallest" and report.alone
    assert str(report.signature) == "crash (phase select, ValueError)"
    assert len(small.microbatches) == 1 and len(small.microbatches[0].sequences) == 1
    assert total(small) == 12
    assert small.microbatches[0].tail_padding == 0 and small.microbatches[0].padded == "auto"
    assert small.model.dsa_indexer_topk == 1 and small.model.num_layers == 1
    assert small.num_ranks == 1 and small.level == "scorer"
    assert small.model.name == "small+" and small.model.hidden_size == 256
    assert report.evaluations == len(fake.seen) < 120
    assert all(sound(case) for case in fake.seen)


def test_a_tiny_case_is_tried_before_the_given_one():
    wanted = Signature(verdict="crash", phase="select", exception="ValueError")
    report, fake = minimise(long_packs, wanted=wanted)
    assert total(report.scenario) == 12
    assert all(cost(case) < cost(scenario()) for case in fake.seen)


def test_the_given_case_is_run_where_no_signature_is_given():
    _, fake = minimise(long_packs)
    assert fake.seen[0] == scenario()


def test_a_fault_that_needs_history_keeps_two_microbatches():
    def poisoned(case, before):
        packs = [p.sequences for p in case.microbatches]
        differ = any(a != b for a, b in pairwise(packs))
        return crashed() if differ else passed()

    report, _ = minimise(poisoned)
    assert len(report.scenario.microbatches) == 2
    assert max(total(report.scenario, 0), total(report.scenario, 1)) <= 2


def test_what_warm_processes_did_does_not_mislead():
    """A layout that stays in the processes makes single microbatches fail behind others."""

    def kept(case, before):
        packs = [p.sequences for earlier in (*before, case) for p in earlier.microbatches]
        differ = any(a != b for a, b in pairwise(packs))
        return crashed() if differ else passed()

    report, _ = minimise(kept)
    assert report.alone
    assert len(report.scenario.microbatches) == 2


def test_ranks_and_cp_are_kept_where_they_are_needed():
    def at_two(case, before):
        sizes = [p.cp or case.parallel.context_parallel_size for p in case.microbatches]
        return crashed() if min(sizes) >= 2 and case.level != "scorer" else passed()

    report, _ = minimise(at_two)
    assert report.scenario.num_ranks == 2 and report.scenario.level == "attention"
    rows = {row.name: row for row in report.rows}
    assert (rows["CP size"].before, rows["CP size"].after) == ("4", "2")
    assert rows["CP size"].refused == "context_parallel_size 1: pass"
    assert rows["level"].refused == "level scorer: pass"
    assert rows["microbatches"].refused == ""


def test_another_fault_is_not_taken_for_this_one():
    def other_when_small(case, before):
        if sum(total(case, i) for i in range(len(case.microbatches))) < 40:
            return crashed("OtherError")
        return crashed()

    report, _ = minimise(other_when_small)
    assert report.signature.exception == "ValueError"
    assert sum(total(report.scenario, i) for i in range(len(report.scenario.microbatches))) == 40


def test_a_case_without_a_fault_is_refused():
    with pytest.raises(NothingToMinimiseError, match="expected a fault to keep, found pass"):
        minimise(lambda case, before: passed())
    with pytest.raises(NothingToMinimiseError, match="found not_run"):
        minimise(lambda case, before: missing())
    wanted = Signature(verdict="memory_fault")
    with pytest.raises(NothingToMinimiseError, match="expected memory_fault, found crash"):
        minimise(lambda case, before: crashed(), wanted=wanted)


def test_a_fault_that_comes_and_goes_is_accepted_by_its_share():
    calls = []

    def every_third(case, before):
        calls.append(case)
        if long_packs(case, before).verdict == "pass":
            return passed()
        return crashed() if len(calls) % 3 == 0 else passed()

    wanted = Signature(verdict="crash")
    report, _ = minimise(every_third, wanted=wanted, acceptance=Acceptance(hits=1, trials=3))
    assert total(report.scenario) == 12
    with pytest.raises(NothingToMinimiseError):
        minimise(every_third, wanted=wanted, acceptance=Acceptance(hits=3, trials=3))


def test_evaluations_and_signals_end_it_with_the_best_so_far():
    report, _ = minimise(long_packs, most=20)
    # The last look at the smallest case comes on top.
    assert report.ending == "evaluations" and report.evaluations <= 21
    assert cost(report.scenario) < cost(scenario())
    stop = iter([False] * 5)
    report, _ = minimise(long_packs, stop=lambda: next(stop, True))
    assert report.ending == "stopped" and not report.alone


def test_time_that_is_up_before_a_fault_was_seen_is_said():
    with pytest.raises(NothingToMinimiseError, match="the budget was used up before the fault"):
        minimise(long_packs, budget_s=0.0)


def test_a_killed_minimisation_goes_on_without_running_anything_twice(tmp_path):
    file = tmp_path / "evaluations.jsonl"
    _, fake = minimise(long_packs, most=25, memory=Memory.open(file))
    assert len(file.read_text().splitlines()) == len(fake.seen)
    with file.open("a") as stream:
        stream.write('{"case": "cut o')  # as a kill leaves it
    second, again = minimise(long_packs, memory=Memory.open(file))
    whole, alone = minimise(long_packs)
    assert second.ending == "smallest" and second.scenario == whole.scenario
    assert second.replayed >= 25
    assert not {c.content_hash for c in fake.seen[:25]} & {c.content_hash for c in again.seen[:-1]}
    assert len(again.seen) + 25 <= len(alone.seen) + 2


def test_every_improvement_is_a_file_that_loads(tmp_path):
    files = Files(folder=tmp_path, given=scenario(), rerun="dsa-harness run --ranks 4")
    fake = Fake(long_packs)
    minimiser = Minimiser(scenario=scenario(), evaluator=fake)
    minimiser.improved = lambda step: files.step(step, minimiser.wanted)
    report = files.end(minimiser.run())
    steps = sorted((tmp_path / "steps").iterdir())
    assert len(steps) > 3
    loaded = [load([path]).scenarios[0].scenario for path in steps]
    assert loaded[-1] == load([tmp_path / "smallest.yaml"]).scenarios[0].scenario
    assert loaded[-1].content_hash == report.scenario.content_hash
    assert loaded[-1].id == "case/large-minimal"
    # The first is the given case, and every further one is smaller.
    costs = [cost(case) for case in loaded]
    assert costs[0] == cost(scenario())
    # Dimensions that count for nothing at the end are those of a model with a name.
    assert costs[-1][:-1] == min(costs)[:-1]
    text = "\n".join(minimise_lines(report, tmp_path))
    assert "CP size" in text and "nothing smaller that was tried shows it" in text
    assert json.loads((tmp_path / "minimise.json").read_text())["ending"] == "smallest"
    assert read_signature(tmp_path / "result.json") == report.signature


def test_a_case_that_passes_leaves_nothing_that_looks_like_a_result(tmp_path):
    files = Files(folder=tmp_path, given=scenario(), rerun="dsa-harness run --ranks 4")
    minimiser = Minimiser(scenario=scenario(), evaluator=Fake(lambda case, before: passed()))
    minimiser.improved = lambda step: files.step(step, minimiser.wanted)
    with pytest.raises(NothingToMinimiseError, match="expected a fault to keep, found pass"):
        minimiser.run()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{}", "none"),
        ('{"kernel": "indexer_top_k_wrapper"}', "none"),
        ('{"verdict": "broken"}', "'broken'"),
        ('{"verdict": "pass"}', "'pass'"),
        ('{"verdict": ["crash"]}', r"\['crash'\]"),
    ],
)
def test_a_signature_by_hand_needs_the_verdict_of_a_fault(tmp_path, text, found):
    (tmp_path / "signature.json").write_text(text)
    with pytest.raises(SignatureFileError, match=f"expected a verdict .*crash.*found {found}$"):
        read_signature(tmp_path / "signature.json")
    (tmp_path / "signature.json").write_text('{"verdict": "crash"}')
    assert read_signature(tmp_path / "signature.json") == Signature(verdict="crash")


def test_expectations_go_unless_they_are_the_fault():
    from harness.scenario.spec import ExpectSpec

    expect = ExpectSpec(plan="packed_thd", layout_builds_per_microbatch=1)
    report, _ = minimise(long_packs, scenario(level="model", expect=expect))
    assert report.scenario.expect == ExpectSpec()


@pytest.mark.parametrize(
    "case",
    [
        scenario(),
        scenario(
            level="scorer",
            parallel=ParallelSpec(context_parallel_size=32, cp_ranks=(7, 31)),
            microbatches=(MicrobatchSpec(sequences=(4096, 100, 64), tail_padding=64),),
        ),
        scenario(
            level="model",
            training=TrainingSpec(backward=True, dsa_indexer_loss_coeff=0.1),
            schedule=("F0", "F1", "B0", "F2", "B2", "B1"),
            inject=("wrong_value@3:attend", "exception@0:select"),
        ),
        scenario(
            parallel=ParallelSpec(context_parallel_size=2, dynamic_context_parallel=True),
            microbatches=(
                MicrobatchSpec(sequences=(64, 16), cp=4),
                MicrobatchSpec(sequences=(16,), cp=2, beside=((8, 8),)),
                MicrobatchSpec(sequences=(9,), cp=1, cp_group="none"),
            ),
        ),
    ],
    ids=["attention", "scorer", "model", "dynamic"],
)
def test_no_reduction_makes_a_case_larger(case):
    assert sound(case)
    found = 0
    for reduction in REDUCTIONS:
        for text, smaller in reduction.candidates(case):
            found += sound(smaller)
            if sound(smaller):
                assert cost(smaller) <= cost(case), text
                assert smaller != case, text
    assert found > 20


def test_a_planted_fault_is_kept_and_the_file_expects_it(tmp_path):
    def planted(case, before):
        return crashed() if "exception@3:select" in case.inject else passed()

    case = scenario(inject=("wrong_value@0:attend", "exception@3:select"))
    files = Files(folder=tmp_path, given=case, rerun="dsa-harness run --ranks 4")
    minimiser = Minimiser(scenario=case, evaluator=Fake(planted))
    minimiser.improved = lambda step: files.step(step, minimiser.wanted)
    report = minimiser.run()
    assert report.scenario.inject == ("exception@3:select",)
    result = load([tmp_path / "smallest.yaml"])
    assert result.ok and result.scenarios[0].scenario.expect.verdict == "crash"


def test_planted_ranks_follow_the_ranks():
    case = scenario(inject=("wrong_value@3:attend", "exception@1:select"))
    assert with_cp(case, 2).inject == ("wrong_value@1:attend", "exception@0:select")
    logical = replace(case, level="scorer", inject=("wrong_value@0:attend",))
    assert with_cp(logical, 2).inject == ("wrong_value@0:attend",)


def test_steps_follow_their_microbatches():
    case = scenario(
        level="model",
        training=TrainingSpec(backward=True),
        schedule=("F0", "F1", "B0", "F2", "B2", "B1"),
    )
    assert with_packs(case, (0, 2)).schedule == ("F0", "B0", "F1", "B1")


def test_ladders_and_subsets():
    assert ladder(10) == [1, 2, 4, 8]
    assert ladder(1) == [] and ladder(9, least=8) == [8]
    assert subsets(1) == []
    assert subsets(3) == [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    many = subsets(200)
    assert len(many) < 70 and all(0 < len(part) < 200 for part in many)
    assert many[:2] == [(0,), (199,)] and len(many[-1]) > 180


def test_lengths_are_rounded_off_without_a_further_row():
    case = scenario(microbatches=(MicrobatchSpec(sequences=(13, 0, 16)),))
    ((_, rounded),) = rounder(case)
    assert rounded.microbatches[0].sequences == (16, 0, 16)
    assert list(rounder(rounded)) == []
