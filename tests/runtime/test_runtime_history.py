"""Histories on one rank: order of steps, evaluation, recomputation, interrupted forwards."""

from __future__ import annotations

from dataclasses import replace

import pytest
from run_alone import one_rank, run_alone

from harness.production import preload  # noqa: F401 (imports Megatron, warnings silenced)
from harness.record.groups import BACKWARD, FORWARD, INTERRUPTED
from harness.record.verdict import Verdict
from harness.scenario.spec import (
    CompareSpec,
    KernelsSpec,
    MicrobatchSpec,
    ModelSpec,
    ParallelSpec,
    Scenario,
    TrainingSpec,
    ValuesSpec,
)

PACKS = (MicrobatchSpec(sequences=(32, 16)), MicrobatchSpec(sequences=(16, 32)))
SCENARIO = Scenario(
    id="t",
    summary="",
    model=ModelSpec(name="small", num_attention_heads=16, dsa_indexer_n_heads=32),
    level="attention",
    kernels=KernelsSpec(dsa_kernel_backend="none"),
    microbatches=PACKS,
    training=TrainingSpec(backward=True, dsa_indexer_loss_coeff=0.5),
)
INTERLEAVED = ("F0", "F1", "B0", "B1")


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory):
    with one_rank(tmp_path_factory.mktemp("world")):
        yield


@pytest.fixture(scope="module")
def in_order(tmp_path_factory):
    return run_alone(SCENARIO, tmp_path_factory.mktemp("run"))


def diffs(attempt):
    return {
        (v.microbatch, v.name): v.max_abs_diff
        for v in attempt.values
        if v.name != "grad.param.linear_wq_b.weight"
    }


def test_two_forwards_before_two_backwards_give_each_microbatch_what_it_has_alone(
    tmp_path, in_order
):
    attempt = run_alone(replace(SCENARIO, schedule=INTERLEAVED), tmp_path)
    assert attempt.verdict is Verdict.PASS, attempt.deviations
    assert [s.microbatch for s in attempt.selections] == [0, 1]
    assert diffs(attempt) == diffs(in_order)


def test_steps_that_come_out_of_order_are_concluded_in_the_order_of_the_schedule(tmp_path):
    schedule = ("F0", "F1", "B1", "B0")
    attempt = run_alone(replace(SCENARIO, schedule=schedule), tmp_path)
    assert attempt.verdict is Verdict.PASS, attempt.deviations
    assert [s.microbatch for s in attempt.selections] == [1, 0]


def test_an_evaluation_step_has_a_selection_and_no_values(tmp_path):
    evaluated = MicrobatchSpec(sequences=(24, 24), forward_only=True)
    scenario = replace(
        SCENARIO,
        microbatches=(*PACKS, evaluated),
        schedule=("F0", "F2", "F1", "B0", "B1"),
        values=ValuesSpec(seeds=(0, 1)),
    )
    attempt = run_alone(scenario, tmp_path, evidence=("state",))
    assert attempt.verdict is Verdict.PASS, attempt.deviations
    assert [s.microbatch for s in attempt.selections] == [2, 0, 1] * 2
    assert {v.microbatch for v in attempt.values} == {0, 1}
    assert len(attempt.states) == 6


RECOMPUTED = replace(SCENARIO.training, recompute="selective")


def test_what_is_computed_again_is_held_against_its_own_forward(tmp_path, in_order):
    scenario = replace(SCENARIO, training=RECOMPUTED, schedule=INTERLEAVED)
    attempt = run_alone(scenario, tmp_path, evidence=("groups",))
    assert attempt.verdict is Verdict.PASS, attempt.deviations
    assert [(r.microbatch, r.replays, r.rows_different) for r in attempt.replays] == [
        (0, 1, 0),
        (1, 1, 0),
    ]
    assert {use.replay for record in attempt.groups for use in record.uses} == {False, True}
    assert diffs(attempt) == diffs(in_order)


def test_planted_selection_of_the_later_microbatch_is_a_replay_mismatch(tmp_path):
    scenario = replace(SCENARIO, training=RECOMPUTED, schedule=INTERLEAVED)
    attempt = run_alone(scenario, tmp_path, inject=("later_selection@0:layout",))
    # The output is the forward's, and the gradients are those of other keys.
    assert attempt.verdict is Verdict.WRONG_VALUE
    assert Verdict.REPLAY_MISMATCH in attempt.secondary
    (wrong,) = (record for record in attempt.replays if record.differences)
    assert (wrong.microbatch, wrong.rows_different > 0) == (0, True)
    # One after the other no later microbatch has run when backward comes.
    ordered = replace(scenario, schedule=None)
    healthy = run_alone(ordered, tmp_path, inject=("later_selection@0:layout",))
    assert healthy.verdict is Verdict.PASS, healthy.deviations


def test_groups_are_looked_at_behind_every_step_and_an_interrupted_forward(tmp_path):
    scenario = replace(SCENARIO, compare=CompareSpec(launches=("interrupted",)))
    attempt = run_alone(scenario, tmp_path, evidence=("groups",))
    assert attempt.verdict is Verdict.PASS, attempt.deviations
    assert [record.launch for record in attempt.launches] == ["interrupted"] * 2
    assert all(record.rows and record.output_compared for record in attempt.launches)
    for record in attempt.groups:
        assert [m.when for m in record.moments] == [FORWARD, BACKWARD, INTERRUPTED]
        assert record.rows == (48,)


@pytest.mark.parametrize("cp_group", ["real", "none"])
def test_one_rank_of_its_own_is_given_by_either_contract(tmp_path, cp_group):
    first = replace(PACKS[0], cp=1, cp_group=cp_group)
    scenario = replace(
        SCENARIO,
        parallel=ParallelSpec(dynamic_context_parallel=True),
        microbatches=(first, PACKS[1]),
    )
    attempt = run_alone(scenario, tmp_path, evidence=("groups",))
    assert attempt.verdict is Verdict.PASS, attempt.deviations
    assert [record.contract for record in attempt.groups] == [cp_group, "real"]
    assert {record.set_by for record in attempt.groups} == {"harness"}
    assert attempt.groups[0].stored == {"1": 1}
