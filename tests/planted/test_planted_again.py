"""Faults that only another run of the same tokens shows: in fp32, or at another CP size."""

from __future__ import annotations

import pytest
from planted_runs import Run, run, write_scenario

from harness.record.verdict import Outcome, Verdict

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(600)]

SCENARIO = """\
id: {id}
summary: Planted in a test.
model:
  name: tiny
  hidden_size: 64
  q_lora_rank: 32
  num_attention_heads: 4
  v_head_dim: 16
  dsa_indexer_n_heads: 8
level: attention
kernels: {{dsa_kernel_backend: none}}
parallel: {{context_parallel_size: {cp}}}
microbatches: [{{sequences: [64, 32]}}]
training: {{backward: true}}
compare: {compare}
limits: {{time_s: {time_s}}}
"""
AGAIN = {
    "alone": "{{}}",
    "in-fp32": "{{dtype: fp32}}",
    "at-cp1": "{{context_parallel_size: [1]}}",
    "on-parts": "{{effective_cp: [1]}}",
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("scenarios")
    paths = []
    for name, compare in AGAIN.items():
        text = SCENARIO.replace("{compare}", compare)
        for prefix in ("planted", "healthy"):
            paths.append(write_scenario(folder, f"{prefix}/{name}", cp=2, time_s=120, text=text))
    inject = ["--inject", "slight_value@1:attend@planted/"]
    return run(2, paths, tmp_path_factory.mktemp("runs"), *inject)


def wrong(result) -> set[tuple[int, str]]:
    return {(v.global_rank, v.name) for v in result.last.values if not v.within}


def test_a_fault_of_the_size_of_rounding_hides_in_bf16(planted):
    result = planted.results["planted/alone"]
    assert result.verdict is Verdict.PASS, result.explanation


def test_it_keeps_its_size_in_fp32_and_turns_red_there(planted):
    result = planted.results["planted/in-fp32"]
    assert result.verdict is Verdict.WRONG_VALUE, result.explanation
    assert result.outcome is Outcome.UNEXPECTED
    assert wrong(result) == {(1, "fp32.attention_output")}


@pytest.mark.parametrize(("name", "prefix"), [("at-cp1", "cp1"), ("on-parts", "effective1")])
def test_it_is_seen_beside_the_same_tokens_at_another_size(planted, name, prefix):
    """Rows are equal bit for bit across CP sizes; the bound is one rounding of the greatest."""
    result = planted.results[f"planted/{name}"]
    differs = {
        value.global_rank: value.max_abs_diff
        for value in result.last.values
        if value.name == f"{prefix}.attention_output"
    }
    assert differs[0] == 0.0
    assert differs[1] > 0.0


@pytest.mark.parametrize("name", AGAIN)
def test_its_healthy_twin_passes(planted, name):
    result = planted.results[f"healthy/{name}"]
    assert result.verdict is Verdict.PASS, result.explanation
    names = {value.name for value in result.last.values}
    prefix = {"alone": "", "in-fp32": "fp32.", "at-cp1": "cp1.", "on-parts": "effective1."}[name]
    assert {f"{prefix}attention_output", f"{prefix}grad.key"} <= names
