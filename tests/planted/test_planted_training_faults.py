"""Planted faults of training through the fused path on two real ranks: picks right, values not.

One torchrun runs each fault in a scenario of its own, the same call left alone, and the lost
parameter at CP 1, where that fault does not strike.
"""

from __future__ import annotations

import pytest
from planted_runs import Run, run, write_scenario

from harness.record.verdict import Outcome, Verdict

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(600)]

SCENARIO = """\
id: {id}
summary: Planted in a test.
model: {{base: small, dsa_indexer_topk: 128}}
level: attention
kernels:
  dsa_kernel_backend: cudnn
  source: modelled
  modelled: {{cudnn_frontend: "1.25.0", arch: sm90}}
parallel: {{context_parallel_size: {cp}}}
microbatches: [{{sequences: [192, 96]}}]
training:
  {{backward: true, dsa_indexer_loss_coeff: 0.5, dsa_indexer_use_sparse_loss: true}}
limits: {{time_s: {time_s}}}
"""
FAULTS = {
    "wrong_loss_group": Verdict.WRONG_VALUE,
    "lost_gradient": Verdict.WRONG_GRADIENT,
    "clamped_slots": Verdict.WRONG_VALUE,
}
RANK = 1


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("scenarios")
    keep = {"cp": 2, "time_s": 120.0, "text": SCENARIO}
    paths = [write_scenario(folder, "healthy/twin", **keep)]
    arguments = []
    for kind in FAULTS:
        paths.append(write_scenario(folder, f"planted/{kind}", **keep))
        arguments += ["--inject", f"{kind}@{RANK}:attend@planted/{kind}"]
    alone = keep | {"cp": 1, "text": SCENARIO.replace("[192, 96]", "[192], qkv_format: sbhd")}
    paths.append(write_scenario(folder, "single/lost_gradient", **alone))
    arguments += ["--inject", "lost_gradient@0:attend@single/lost_gradient"]
    return run(2, paths, tmp_path_factory.mktemp("runs"), *arguments, timeout_s=540)


def wrong_names(planted: Run, scenario_id: str, rank: int) -> set[str]:
    values = planted.results[scenario_id].last.values
    return {v.name for v in values if not v.within and v.global_rank == rank}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_has_its_verdict_and_its_picks_are_right(planted, kind):
    result = planted.results[f"planted/{kind}"]
    assert result.verdict is FAULTS[kind], result.explanation
    assert result.outcome is Outcome.UNEXPECTED
    assert not any(s.total.num_wrong for s in result.last.selections)


def test_a_loss_summed_over_the_wrong_group_is_wrong_on_its_rank(planted):
    here, other = (wrong_names(planted, "planted/wrong_loss_group", rank) for rank in (RANK, 0))
    assert {"indexer_loss", "grad.q_indexer", "grad.weights"} <= here
    # Keys are shared over ranks, and so is the loss that is logged: these show everywhere.
    assert not {"indexer_loss", "grad.q_indexer", "grad.weights"} & other
    assert "attention_output" not in here


def test_a_lost_parameter_is_named_on_its_rank_and_by_its_name(planted):
    here, other = (wrong_names(planted, "planted/lost_gradient", rank) for rank in (RANK, 0))
    assert here == {"grad.weights", "grad.param.linear_weights_proj.weight"}
    assert other == set()


def test_the_same_cut_at_one_rank_does_not_strike(planted):
    result = planted.results["single/lost_gradient"]
    assert result.verdict is Verdict.PASS, result.explanation
    assert result.last.proof.injected == ("lost_gradient@0:attend@single/lost_gradient",)


def test_slots_clamped_to_the_first_key_change_what_attention_gives(planted):
    here, other = (wrong_names(planted, "planted/clamped_slots", rank) for rank in (RANK, 0))
    assert "attention_output" in here
    assert "attention_output" not in other


def test_the_twin_passes_with_every_value_compared(planted):
    result = planted.results["healthy/twin"]
    assert result.verdict is Verdict.PASS, result.explanation
    names = {value.name for value in result.last.values}
    assert names >= {
        "attention_output",
        "indexer_loss",
        "grad.query",
        "grad.key",
        "grad.q_indexer",
        "grad.k_indexer",
        "grad.weights",
        "grad.param.linear_weights_proj.weight",
    }
