"""Verdicts of training evidence: autograd, shared layers, values of known rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.record.autograd import AutogradEvidence
from harness.record.evidence import ValueEvidence
from harness.record.path import SHARED_PLAN, PathEvidence
from harness.record.result import Proof, RankOutcome
from harness.record.selection import OverlapStats, SelectionEvidence
from harness.record.verdict import Outcome, Verdict
from harness.runtime.journal import Journal, read_journal
from harness.runtime.judge import PROOF, conclude, judge_attempt
from harness.scenario.spec import KnownRule, MicrobatchSpec, ModelSpec, Scenario

SITE = {"global_rank": 0, "cp_rank": 0, "microbatch": 0, "seed": 0}
RIGHT = OverlapStats(rows=4, due=8, exact=8)


def selection(layer: int) -> SelectionEvidence:
    return SelectionEvidence(
        **SITE, layer=layer, stage="final", topk=2, reference_dtype="fp32", total=RIGHT
    )


def path(layer: int, plan: str = "none") -> PathEvidence:
    return PathEvidence(
        **SITE,
        layer=layer,
        backend="none",
        plan=plan,
        plan_source="inferred",
        reason="",
        scorer="naive_topk",
        fused=False,
    )


def value(name: str, *, within: bool, gradient: bool = False) -> ValueEvidence:
    return ValueEvidence(
        **SITE,
        layer=1,
        name=name,
        gradient=gradient,
        max_abs_diff=0.0 if within else 1.0,
        max_rel_diff=0.0,
        tolerance_abs=0.1,
        tolerance_rel=0.0,
        within=within,
        reason="why",
    )


FUNCTION = AutogradEvidence(
    **SITE, layer=0, function="Func", calls=2, inputs=17, gradients=17, missing=()
)
SHARING = Scenario(
    id="a/b",
    summary="Shares.",
    model=ModelSpec(name="small", num_layers=2, dsa_indexer_topk_freq=2),
    level="model",
    microbatches=(MicrobatchSpec(sequences=(8,)),),
)
PLAIN = replace(SHARING, model=ModelSpec(name="small"))


@pytest.fixture
def judge(tmp_path):
    def run(scenario: Scenario, *evidence):
        file = tmp_path / "rank0.jsonl"
        journal = Journal(file, global_rank=0)
        journal.fact(PROOF, Proof(facts={"megatron_core": "0.19.2"}))
        for record in evidence:
            journal.evidence(record)
        journal.close()
        journals = [read_journal(file, global_rank=0)]
        file.unlink()
        ranks = (RankOutcome(global_rank=0, exit_code=0, completed=True),)
        return judge_attempt(
            scenario,
            ranks,
            journals,
            number=1,
            started_at="2026-01-01T00:00:00Z",
            duration_s=1.0,
            isolation="scenario",
        )

    return run


def test_one_gradient_for_each_input_passes_and_another_number_does_not(judge):
    assert judge(PLAIN, path(1), selection(1), FUNCTION).verdict is Verdict.PASS
    for wrong in (replace(FUNCTION, gradients=16), replace(FUNCTION, missing=("gain",))):
        attempt = judge(PLAIN, path(1), selection(1), wrong)
        assert attempt.verdict is Verdict.WRONG_GRADIENT
        assert attempt.autograd == (wrong,)


def test_a_sharing_layer_that_scores_for_itself_has_taken_another_path(judge):
    healthy = (path(1), selection(1), path(2, SHARED_PLAN), selection(2))
    assert judge(SHARING, *healthy).verdict is Verdict.PASS
    own = (path(1), selection(1), path(2), selection(2))
    attempt = judge(SHARING, *own)
    assert attempt.verdict is Verdict.WRONG_PATH
    assert "expected the picks of layer 1" in attempt.deviations[0].text


def test_a_layer_without_a_judged_selection_is_no_pass(judge):
    attempt = judge(SHARING, path(1), selection(1), path(2, SHARED_PLAN))
    assert attempt.verdict is Verdict.HARNESS_ERROR


def test_layers_share_by_the_schedule_of_the_build():
    offset = ModelSpec(name="m", dsa_indexer_topk_freq=4, dsa_indexer_skip_topk_offset=3)
    assert [offset.source_layer(layer) for layer in range(1, 10)] == [1, 2, 3, 3, 3, 3, 7, 7, 7]
    assert [ModelSpec(name="m").source_layer(layer) for layer in (1, 2, 9)] == [1, 2, 9]


def test_a_rule_that_names_values_holds_for_exactly_those(judge):
    rule = KnownRule(
        when={"megatron_core": ">=0.19,<0.20"},
        verdict=Verdict.WRONG_VALUE,
        values=("logged_loss",),
        link="https://example.org/1",
    )
    scenario = replace(PLAIN, known=(rule,))

    def outcome(*values: ValueEvidence) -> Outcome:
        attempt = judge(scenario, path(1), selection(1), *values)
        return conclude(scenario, (attempt,), file="f", rerun="r").outcome

    assert outcome(value("logged_loss", within=False)) is Outcome.KNOWN
    assert outcome(value("indexer_loss", within=False)) is Outcome.UNEXPECTED
    both = (value("logged_loss", within=False), value("indexer_loss", within=False))
    assert outcome(*both) is Outcome.UNEXPECTED
    assert outcome(value("logged_loss", within=True)) is Outcome.FIXED
