"""Verdicts of broken calls: a build's refusal, a kernel's, torch's, and a call nobody made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.record.evidence import ExceptionEvidence
from harness.record.perturb import PerturbEvidence
from harness.record.phase import Phase
from harness.record.result import FaultReport, RankOutcome
from harness.record.verdict import Verdict
from harness.runtime.journal import Entry, JournalContent
from harness.runtime.judge_perturb import (
    perturb_deviations,
    perturbed_fault,
    refusal_fact,
    wanted_verdict,
)
from harness.scenario.facts import FACTS
from harness.scenario.names import PERTURBATIONS
from harness.scenario.spec import MicrobatchSpec, ModelSpec, ParallelSpec, PerturbSpec, Scenario


def scenario(fact: str | None, ranks="all") -> Scenario:
    return Scenario(
        id="a",
        summary="b",
        model=ModelSpec(name="small"),
        parallel=ParallelSpec(context_parallel_size=2),
        microbatches=(MicrobatchSpec(sequences=(8,)),),
        perturb=PerturbSpec(fact=fact, ranks=ranks),
    )


def struck(fact: str, *kernels: str, rank: int = 1) -> PerturbEvidence:
    return PerturbEvidence(
        global_rank=rank,
        cp_rank=rank,
        microbatch=0,
        layer=1,
        seed=0,
        fact=fact,
        call="dispatch_attention",
        arguments=("k_indexer",),
        change="something became something else",
        kernels=kernels,
    )


def entry(evidence: PerturbEvidence) -> Entry:
    return Entry(time_s=0.0, phase=Phase.SCORE, record=evidence)


def journals(*evidence: PerturbEvidence) -> list[JournalContent]:
    return [
        JournalContent(
            global_rank=rank,
            entries=tuple(entry(e) for e in evidence if e.global_rank == rank),
        )
        for rank in (0, 1)
    ]


REFUSED = FaultReport(verdict=Verdict.REFUSED, global_rank=1, phase=Phase.SCORE, cause="no")


def test_a_refusal_before_any_kernel_stays_one():
    found = perturbed_fault(scenario("device"), REFUSED, (), journals(struck("device")))
    assert found == REFUSED


def test_a_refusal_behind_a_kernel_call_is_a_crash_that_names_the_kernel():
    evidence = journals(struck("device", "indexer_forward"))
    found = perturbed_fault(scenario("device"), REFUSED, (), evidence)
    assert found.verdict is Verdict.CRASH
    assert "indexer_forward" in found.cause


@pytest.mark.parametrize("evidence", [(), (struck("device", "indexer_forward", rank=0),)])
def test_kernels_of_other_ranks_do_not_count(evidence):
    found = perturbed_fault(scenario("device"), REFUSED, (), journals(*evidence))
    assert found == REFUSED


def test_scenarios_without_a_broken_call_keep_their_fault():
    evidence = journals(struck("device", "indexer_forward"))
    assert perturbed_fault(scenario(None), REFUSED, (), evidence) == REFUSED
    assert perturbed_fault(scenario("device"), None, (), evidence) is None


@pytest.mark.parametrize(
    ("fact", "kind", "phase", "verdict"),
    [
        ("gradient_arity", "RuntimeError", Phase.BACKWARD, Verdict.CRASH),
        ("gradient_arity", "KeyError", Phase.BACKWARD, Verdict.HARNESS_ERROR),
        ("gradient_arity", "RuntimeError", Phase.COMPARE, Verdict.HARNESS_ERROR),
        ("device", "RuntimeError", Phase.BACKWARD, Verdict.HARNESS_ERROR),
    ],
)
def test_what_torch_throws_out_is_the_builds(fact, kind, phase, verdict):
    raised = ExceptionEvidence(type=kind, text="", traceback="", origin="harness")
    ranks = (RankOutcome(global_rank=1, exception=raised),)
    fault = replace(REFUSED, verdict=Verdict.HARNESS_ERROR, phase=phase)
    found = perturbed_fault(scenario(fact), fault, ranks, journals(struck(fact)))
    assert found.verdict is verdict


@pytest.mark.parametrize("fact", PERTURBATIONS)
def test_a_build_that_checks_the_fact_is_to_refuse(fact):
    assert refusal_fact(fact) in FACTS
    checks = {refusal_fact(fact): True}
    assert wanted_verdict(scenario(fact), checks) is Verdict.REFUSED
    assert wanted_verdict(scenario(fact), {refusal_fact(fact): False}) is Verdict.PASS
    assert wanted_verdict(scenario(fact), {}) is Verdict.PASS
    assert wanted_verdict(scenario(None), checks) is Verdict.PASS


def test_a_rank_whose_call_was_never_broken_is_named():
    both = journals(struck("device", rank=0), struck("device"))
    assert perturb_deviations(scenario("device"), both) == ()
    (found,) = perturb_deviations(scenario("device"), journals(struck("device")))
    assert found.verdict is Verdict.WRONG_PATH and found.global_rank == 0
    assert perturb_deviations(scenario("device", ranks=(1,)), journals(struck("device"))) == ()
    assert perturb_deviations(scenario(None), journals()) == ()
