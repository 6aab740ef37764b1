"""What a build checks of its scoring calls is read from conditions that raise, and nothing else."""

from __future__ import annotations

import pytest

from harness.production.call_checks import CALL_FACTS, call_facts
from harness.scenario.facts import FACTS
from harness.scenario.names import PERTURBATIONS

CHECKS = {
    "refuses_device": "q.device != k.device",
    "refuses_dtype": "q_indexer.dtype is not k_indexer.dtype",
    "refuses_view": "not q.is_contiguous()",
    "refuses_tp_slice": "q.size(2) != config.dsa_indexer_n_heads",
    "refuses_gradient_arity": "len(gradients) != len(ctx.needs_input_grad)",
    "refuses_missing_bounds": "(varlen_starts is None) != (varlen_ends is None)",
}
"""Fact to the condition of a build that checks it."""


@pytest.fixture
def facts_of(tmp_path):
    def probe(source: str, module: str = "dsa_kernels.py") -> list[str]:
        (tmp_path / module).write_text(source)
        return [name for name, value in call_facts(tmp_path).items() if value]

    return probe


@pytest.mark.parametrize("module", ["dsa_kernels.py", "dsa_cudnn_kernels.py"])
@pytest.mark.parametrize("fact", CHECKS)
def test_a_condition_that_raises_is_a_check(facts_of, fact, module):
    source = f"def f(*args):\n    if {CHECKS[fact]}:\n        raise ValueError('no')\n"
    assert facts_of(source, module) == [fact]


@pytest.mark.parametrize("fact", CHECKS)
def test_an_assertion_is_a_check(facts_of, fact):
    assert facts_of(f"def f(*args):\n    assert {CHECKS[fact]}, 'no'\n") == [fact]


@pytest.mark.parametrize("fact", CHECKS)
def test_declining_is_no_check(facts_of, fact):
    assert facts_of(f"def f(*args):\n    if {CHECKS[fact]}:\n        return None\n") == []


@pytest.mark.parametrize(
    "condition",
    ["positions.device != mask.device", "cu_seqlens.dtype != torch.int32", "bias.stride() != 1"],
)
def test_checks_of_other_tensors_say_nothing_of_the_call(facts_of, condition):
    assert facts_of(f"def f(*args):\n    if {condition}:\n        raise ValueError('no')\n") == []


def test_comments_and_texts_are_no_checks(facts_of):
    assert (
        facts_of("# if q.device != k.device: raise\nTEXT = 'assert q.device == k.device'\n") == []
    )


def test_the_meaning_of_ids_is_said_by_a_keyword_of_the_backward_alone(facts_of):
    said = "ns.indexer_backward_wrapper(q, w, k, a, i, ids, topk_indices_global=True)\n"
    assert facts_of(said, "dsa_cudnn_kernels.py") == ["says_global_ids"]
    other = said.replace("indexer_backward", "sparse_attn_score_recompute")
    assert facts_of(other, "dsa_cudnn_kernels.py") == []


def test_rules_may_ask_for_every_fact_and_every_perturbation_has_one():
    assert set(CALL_FACTS) <= set(FACTS)
    refusals = {name.removeprefix("refuses_") for name in CALL_FACTS if "refuses" in name}
    bounds = {"missing_starts", "missing_ends"}
    assert refusals == set(PERTURBATIONS) - bounds | {"missing_bounds"}
