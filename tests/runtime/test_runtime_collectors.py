"""Collectors in a whole run on one rank: each planted fault turns red, its healthy twin passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from run_alone import one_rank, run_alone

from harness.production import preload  # noqa: F401 (imports Megatron, warnings silenced)
from harness.record.verdict import Verdict
from harness.scenario.spec import (
    CompareSpec,
    ExpectSpec,
    KernelsSpec,
    MicrobatchSpec,
    ModelledKernels,
    ModelSpec,
    ParallelSpec,
    Scenario,
    TrainingSpec,
)

SCORER = Scenario(
    id="t",
    summary="",
    model=ModelSpec(name="small", num_attention_heads=16, dsa_indexer_n_heads=32),
    level="scorer",
    kernels=KernelsSpec(
        dsa_kernel_backend="cudnn",
        source="modelled",
        modelled=ModelledKernels(cudnn_frontend="1.25.0"),
    ),
    parallel=ParallelSpec(context_parallel_size=2),
    microbatches=(MicrobatchSpec(sequences=(96,)),),
)
PACK = (MicrobatchSpec(sequences=(64, 32)),)
ATTENTION = replace(
    SCORER,
    level="attention",
    kernels=KernelsSpec(dsa_kernel_backend="none"),
    parallel=ParallelSpec(),
    microbatches=PACK,
)
MODEL = replace(ATTENTION, level="model", model=replace(SCORER.model, num_layers=2))


@pytest.fixture(scope="module", autouse=True)
def world(tmp_path_factory):
    with one_rank(tmp_path_factory.mktemp("world")):
        yield


def test_waits_are_equal_in_all_layers_and_nothing_is_left_changed(tmp_path):
    scenario = replace(MODEL, expect=ExpectSpec(host_reads_per_layer="equal"))
    attempt = run_alone(scenario, tmp_path, evidence=("state",))
    assert attempt.verdict is Verdict.PASS, attempt.deviations
    counts = {record.layer: record.host_reads for record in attempt.transfers if record.layer}
    assert set(counts) == {1, 2}
    assert len(set(counts.values())) == 1
    assert all(site.site.startswith("megatron/") for r in attempt.transfers for site in r.sites)
    (state,) = attempt.states
    assert state.groups
    assert state.settings
    assert state.dispatch
    assert state.moved == ()


def test_planted_extra_host_read_in_one_layer_is_a_wrong_path(tmp_path):
    scenario = replace(MODEL, expect=ExpectSpec(host_reads_per_layer="equal"))
    attempt = run_alone(scenario, tmp_path, inject=("host_read@0:layout",))
    assert attempt.verdict is Verdict.WRONG_PATH
    assert {d.kind for d in attempt.deviations} == {"host_reads"}
    first = {r.layer: r.host_reads for r in attempt.transfers}
    assert first[1] == first[2] + 1


@pytest.mark.parametrize(
    ("kind", "moved"),
    [("group_left", "group indexer.pg_collection.cp"), ("config_left", "config calculate_per")],
)
def test_planted_state_that_is_left_changed_is_named(tmp_path, kind, moved):
    healthy = run_alone(ATTENTION, tmp_path, evidence=("state",))
    assert healthy.verdict is Verdict.PASS, healthy.deviations
    attempt = run_alone(ATTENTION, tmp_path, evidence=("state",), inject=(f"{kind}@0:attend",))
    assert attempt.verdict is Verdict.STATE_LEAK
    assert any(change.name.startswith(moved) for change in attempt.states[0].moved)


@pytest.mark.parametrize("launch", ["again", "chunked", "alone"])
def test_further_launches_select_the_same_keys(tmp_path, launch):
    packs = PACK if launch == "alone" else SCORER.microbatches
    scenario = replace(SCORER, microbatches=packs, compare=CompareSpec(launches=(launch,)))
    attempt = run_alone(scenario, tmp_path)
    assert attempt.verdict is Verdict.PASS, attempt.deviations
    assert [record.cp_rank for record in attempt.launches] == [0, 1]
    for record in attempt.launches:
        assert record.equal
        assert record.rows == 48
        if launch != "again":
            assert record.calls[1] > record.calls[0]


@pytest.mark.parametrize(
    ("kind", "launch"), [("second_launch", "again"), ("chunk_picks", "chunked")]
)
def test_planted_selection_that_changes_is_nondeterministic(tmp_path, kind, launch):
    scenario = replace(SCORER, compare=CompareSpec(launches=(launch,)))
    attempt = run_alone(scenario, tmp_path, inject=(f"{kind}@0:select",))
    assert attempt.verdict is Verdict.NONDETERMINISTIC
    assert all(record.first_different == 47 for record in attempt.launches)
    assert f"launch {launch}: 1 of 48 rows" in attempt.deviations[0].text


def test_gradients_change_no_selection(tmp_path):
    scenario = replace(ATTENTION, compare=CompareSpec(launches=("again", "grad")))
    attempt = run_alone(scenario, tmp_path)
    assert attempt.verdict is Verdict.PASS, attempt.deviations
    assert [record.launch for record in attempt.launches] == ["again", "grad"]
    assert all(record.output_compared for record in attempt.launches)


def test_a_second_training_has_the_same_gradients_and_a_planted_one_has_not(tmp_path):
    scenario = replace(
        ATTENTION,
        training=TrainingSpec(backward=True),
        compare=CompareSpec(launches=("again",)),
    )
    attempt = run_alone(scenario, tmp_path)
    assert attempt.verdict is Verdict.PASS, attempt.deviations
    assert [record.gradient_difference for record in attempt.launches] == [0.0]
    attempt = run_alone(scenario, tmp_path, inject=("second_gradient@0:backward",))
    assert attempt.verdict is Verdict.NONDETERMINISTIC
    assert "a gradient element is off" in attempt.deviations[0].text


def test_what_was_collected_is_in_the_record(tmp_path):
    attempt = run_alone(SCORER, tmp_path, evidence=("all",))
    assert attempt.verdict is Verdict.PASS, attempt.deviations
    assert attempt.transfers
    assert attempt.states
    assert attempt.launches
    assert {record.why_not for record in attempt.copies} == {"missing usable GPU"}
    assert {record.reason for record in attempt.graphs} == {"cuda_graph_impl none captures nothing"}
    assert "transfers" in attempt.proof.evidence
    bare = run_alone(SCORER, tmp_path, evidence=("none",))
    assert (bare.transfers, bare.states, bare.launches, bare.graphs) == ((), (), (), ())
