"""Faults of a history in a whole model: what an earlier or later microbatch leaves for another."""

from __future__ import annotations

import pytest
from planted_runs import Run, run, write_scenario

from harness.record.verdict import Outcome, Verdict

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(600)]

MODEL = """\
id: {id}
summary: Planted in a test.
model:
  name: tiny
  num_layers: 2
  hidden_size: 64
  ffn_hidden_size: 64
  vocab_size: 64
  q_lora_rank: 32
  num_attention_heads: 4
  v_head_dim: 16
  dsa_indexer_n_heads: 8
level: model
kernels: {{dsa_kernel_backend: none}}
parallel: {{context_parallel_size: {cp}}}
microbatches: [{{sequences: [64, 32]}}, {{sequences: [32, 64]}}]
schedule: [F0, F1, B0, B1]
training: {{backward: true, recompute: selective}}
limits: {{time_s: {time_s}}}
"""
HELD = """\
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
microbatches: [MICROBATCHES]
expect: {{memory_per_microbatch: 1024}}
limits: {{time_s: {time_s}}}
""".replace("MICROBATCHES", ", ".join(["{{sequences: [32, 16]}}"] * 12))


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("scenarios")
    paths = []
    for name, text in (("later", MODEL), ("held", HELD)):
        for prefix in ("planted", "healthy"):
            paths.append(write_scenario(folder, f"{prefix}/{name}", cp=2, time_s=120, text=text))
    faults = ("later_selection@1:layout@planted/later", "kept_output@1:layout@planted/held")
    inject = [word for fault in faults for word in ("--inject", fault)]
    return run(2, paths, tmp_path_factory.mktemp("runs"), *inject)


def deviations(result, kind: str) -> list[str]:
    return [found.text for found in result.last.deviations if found.kind == kind]


def test_a_replay_that_reads_a_later_microbatch_s_keys_names_both_layers_and_the_rank(planted):
    result = planted.results["planted/later"]
    assert result.outcome is Outcome.UNEXPECTED
    assert Verdict.REPLAY_MISMATCH in (result.verdict, *result.last.secondary)
    found = deviations(result, "replay")
    assert found
    for text in found:
        assert "of microbatch 0 on cp_rank 1, computed again in a step of several" in text
        assert "attends with other keys" in text
    assert {text.split(" of ")[0] for text in found} == {"layer 1", "layer 2"}


def test_what_is_never_let_go_is_a_leak_of_the_rank_that_holds_it(planted):
    result = planted.results["planted/held"]
    assert result.verdict is Verdict.STATE_LEAK
    (found,) = deviations(result, "memory")
    assert found.startswith("live_bytes on cp_rank 1 grow by")


@pytest.mark.parametrize("name", ["later", "held"])
def test_healthy_twins_are_as_expected(planted, name):
    result = planted.results[f"healthy/{name}"]
    assert result.outcome is Outcome.EXPECTED, result.explanation
    assert deviations(result, "replay") == deviations(result, "memory") == []
