"""Planted faults of values and gradients, through forward and backward on two real ranks."""

from __future__ import annotations

import pytest
from planted_runs import Run, run, write_scenario

from harness.record.verdict import Outcome, Verdict

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(240)]

SCENARIO = """\
id: {id}
summary: Planted in a test.
model: small
level: attention
kernels: {{dsa_kernel_backend: none}}
parallel: {{context_parallel_size: {cp}}}
microbatches: [{{sequences: [64, 32]}}]
training:
  {{backward: true, dsa_indexer_loss_coeff: 0.5, dsa_indexer_use_sparse_loss: true}}
limits: {{time_s: {time_s}}}
"""
KINDS = {"wrong_value": Verdict.WRONG_VALUE, "wrong_gradient": Verdict.WRONG_GRADIENT}


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("scenarios")
    paths, arguments = [], []
    for kind in KINDS:
        for prefix in ("planted", "healthy"):
            paths.append(write_scenario(folder, f"{prefix}/{kind}", cp=2, text=SCENARIO))
        arguments += ["--inject", f"{kind}@1:attend@planted/{kind}"]
    return run(2, paths, tmp_path_factory.mktemp("runs"), *arguments)


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_value_has_its_verdict_on_its_rank(planted, kind):
    result = planted.results[f"planted/{kind}"]
    assert result.verdict is KINDS[kind], result.explanation
    assert result.outcome is Outcome.UNEXPECTED
    wrong = {(v.global_rank, v.name) for v in result.last.values if not v.within}
    if kind == "wrong_value":
        assert wrong == {(1, "attention_output")}
    else:
        # Keys are shared: their gradient is a sum over ranks, so both ranks see it wrong.
        assert {name for _rank, name in wrong} == {"grad.query", "grad.key", "grad.up_v"}
        assert {rank for rank, name in wrong if name == "grad.query"} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_its_healthy_twin_passes_with_every_value_compared(planted, kind):
    result = planted.results[f"healthy/{kind}"]
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
    }
