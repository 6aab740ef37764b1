"""Verdict and outcome from evidence: a planted deviation per rule, each beside its healthy twin."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.record.evidence import ExceptionEvidence, LayoutEvidence, NoteEvidence
from harness.record.memo import MemoEvidence, TableRequest
from harness.record.path import PathEvidence
from harness.record.result import Proof, RankOutcome
from harness.record.selection import BehaviourEvidence, OverlapStats, SelectionEvidence
from harness.record.verdict import Outcome, Verdict
from harness.runtime.journal import Journal, read_journal
from harness.runtime.judge import MISSING_CAPABILITY, PROOF, conclude, judge_attempt
from harness.scenario.spec import (
    ExpectSpec,
    KernelsSpec,
    KnownRule,
    MicrobatchSpec,
    ModelSpec,
    Scenario,
)

SITE = {"global_rank": 0, "cp_rank": 0, "microbatch": 0, "layer": 1, "seed": 0}
RIGHT = OverlapStats(rows=4, due=8, exact=7, tie=1)
SELECTION = SelectionEvidence(**SITE, stage="final", topk=2, reference_dtype="fp32", total=RIGHT)
PATH = PathEvidence(
    **SITE,
    backend="cudnn",
    plan="packed_thd",
    plan_source="inferred",
    reason="",
    scorer="scorer_thd",
    fused=True,
    calls={"indexer_forward": 1},
    shares={
        "q": "q",
        "k": "k",
        "w": "w",
        "cu_seqlens_q": "cu_seqlens_q_padded",
        "cu_seqlens_k": "cu_seqlens_kv_padded",
    },
)
WINDOW = BehaviourEvidence(
    **SITE, name="chunk_local_window", rows=4, rows_matching=4, rows_telling=2
)
RULE = KnownRule(
    when={"cudnn_frontend": ">=1.26", "passes_causal_offsets": False, "overlays": ()},
    verdict=Verdict.WRONG_SELECTION,
    behaviour="chunk_local_window",
    link="https://example.invalid/316",
)
PROOF_132 = Proof(
    facts={
        "passes_causal_offsets": False,
        "cudnn_frontend": "1.32.0",
        "megatron_core": "0.19.2",
        "arch": "sm100",
        "source": "modelled",
    }
)


def scenario(**more) -> Scenario:
    return Scenario(
        **{
            "id": "t",
            "summary": "",
            "model": ModelSpec(name="small"),
            "kernels": KernelsSpec(dsa_kernel_backend="cudnn"),
            "microbatches": (MicrobatchSpec(sequences=(8, 8)),),
        }
        | more
    )


@pytest.fixture
def judged(tmp_path):
    def judge(*evidence, of: Scenario | None = None, proof: Proof = PROOF_132, **rank):
        path = tmp_path / "rank0.jsonl"
        journal = Journal(path, global_rank=0)
        journal.fact(PROOF, proof)
        for record in evidence:
            journal.evidence(record)
        journal.close()
        outcome = RankOutcome(**{"global_rank": 0, "exit_code": 0, "completed": True} | rank)
        of = of or scenario()
        attempt = judge_attempt(
            of,
            (outcome,),
            [read_journal(path, global_rank=0)],
            number=1,
            started_at="",
            duration_s=1.0,
            isolation="scenario",
        )
        path.unlink()
        return attempt, conclude(of, (attempt,), file="f:1", rerun="again")

    return judge


def wrong(**counts: int) -> SelectionEvidence:
    return replace(SELECTION, total=replace(RIGHT, exact=6, **counts))


def test_right_evidence_passes(judged):
    attempt, result = judged(SELECTION, PATH)
    assert (attempt.verdict, result.outcome) == (Verdict.PASS, Outcome.EXPECTED)


@pytest.mark.parametrize(
    ("evidence", "verdict"),
    [
        ((wrong(below=1), PATH), Verdict.WRONG_SELECTION),
        ((wrong(missing=1), PATH), Verdict.WRONG_SELECTION),
        ((wrong(duplicate=1), PATH), Verdict.WRONG_SELECTION),
        ((wrong(future=1), PATH), Verdict.OUT_OF_BOUNDS),
        ((wrong(foreign=1), PATH), Verdict.OUT_OF_BOUNDS),
        ((wrong(out_of_range=1), PATH), Verdict.OUT_OF_BOUNDS),
        ((SELECTION, replace(wrong(future=1), stage="wrapper"), PATH), Verdict.OUT_OF_BOUNDS),
        ((SELECTION,), Verdict.WRONG_PATH),
        ((SELECTION, replace(PATH, plan="unknown", fused=False)), Verdict.WRONG_PATH),
        ((SELECTION, replace(PATH, plan="decline", fused=False)), Verdict.WRONG_PATH),
        ((SELECTION, replace(PATH, backend="none")), Verdict.WRONG_PATH),
        (
            (SELECTION, PATH, LayoutEvidence(**SITE, table="gathered_keys", equal=False)),
            Verdict.WRONG_VALUE,
        ),
        ((PATH,), Verdict.HARNESS_ERROR),
        ((NoteEvidence(topic=MISSING_CAPABILITY, text="usable GPU"),), Verdict.NOT_RUN),
    ],
)
def test_each_deviation_has_its_verdict(judged, evidence, verdict):
    attempt, result = judged(*evidence)
    assert attempt.verdict is verdict
    wanted = Outcome.NOT_RUN if verdict is Verdict.NOT_RUN else Outcome.UNEXPECTED
    assert result.outcome is wanted


def test_expected_plan_and_calls_are_held(judged):
    right = scenario(expect=ExpectSpec(plan="packed_thd", kernel_calls={"indexer_forward": 1}))
    assert judged(SELECTION, PATH, of=right)[0].verdict is Verdict.PASS
    for expect in (
        ExpectSpec(plan="packed_single"),
        ExpectSpec(kernel_calls={"indexer_forward": 2}),
        ExpectSpec(diagnostics=1),
        ExpectSpec(kernel_calls={"indexer_top_k": 1}),
    ):
        attempt, _ = judged(SELECTION, PATH, of=scenario(expect=expect))
        assert attempt.verdict is Verdict.WRONG_PATH


def test_a_fallback_is_right_where_the_layout_calls_for_it(judged):
    unpacked = scenario(microbatches=(MicrobatchSpec(sequences=(8,), key_positions="explicit"),))
    declined = replace(PATH, plan="decline", fused=False)
    assert judged(SELECTION, declined, of=unpacked)[0].verdict is Verdict.PASS


def test_known_rule_needs_build_verdict_and_behaviour(judged):
    known = scenario(known=(RULE,))
    bad = wrong(below=1)
    assert judged(bad, PATH, WINDOW, of=known)[1].outcome is Outcome.KNOWN
    unexplained = replace(WINDOW, rows_matching=3, first_mismatch=1)
    assert judged(bad, PATH, unexplained, of=known)[1].outcome is Outcome.UNEXPECTED
    assert judged(bad, PATH, of=known)[1].outcome is Outcome.UNEXPECTED
    older = Proof(facts=PROOF_132.facts | {"cudnn_frontend": "1.25.0"})
    assert judged(bad, PATH, WINDOW, of=known, proof=older)[1].outcome is Outcome.UNEXPECTED
    overlaid = replace(PROOF_132, overlays=("causal_offsets",))
    assert judged(bad, PATH, WINDOW, of=known, proof=overlaid)[1].outcome is Outcome.UNEXPECTED


def test_a_known_defect_that_is_gone_is_fixed(judged):
    result = judged(SELECTION, PATH, of=scenario(known=(RULE,)))[1]
    assert result.outcome is Outcome.FIXED
    assert "remove the rule" in result.explanation


def test_several_verdicts_keep_their_order(judged):
    attempt, _ = judged(wrong(below=1, future=1), replace(PATH, plan="unknown", fused=False))
    assert attempt.verdict is Verdict.WRONG_PATH
    assert attempt.secondary == (Verdict.OUT_OF_BOUNDS, Verdict.WRONG_SELECTION)


def test_a_fault_leads_and_its_report_is_there(judged):
    attempt, _ = judged(PATH, exit_code=None, signal=11, completed=False)
    assert attempt.verdict is Verdict.CRASH
    assert attempt.fault is not None


def test_a_rebuilt_table_is_wrong_memo_and_its_reason_is_kept(judged):
    asked = TableRequest(layer=1, site="f", key="k", geometry="g", flags="", builds=1)
    served = replace(asked, layer=2, builds=0)
    memo = MemoEvidence(
        global_rank=0,
        cp_rank=0,
        microbatch=0,
        seed=0,
        forward=0,
        has_memo=True,
        layers=2,
        requests=(asked, served),
    )
    attempt, _ = judged(SELECTION, PATH, memo)
    assert attempt.verdict is Verdict.PASS and attempt.memos == (memo,)
    twice = replace(memo, requests=(asked, replace(asked, layer=2)))
    attempt, result = judged(SELECTION, PATH, twice)
    assert (attempt.verdict, result.outcome) == (Verdict.WRONG_MEMO, Outcome.UNEXPECTED)
    assert [deviation.kind for deviation in attempt.deviations] == ["rebuilt"]


def test_what_is_wrong_with_a_path_is_kept(judged):
    attempt, _ = judged(SELECTION, replace(PATH, plan="decline", fused=False))
    assert [deviation.kind for deviation in attempt.deviations] == ["fallback"]
    assert attempt.deviations[0].global_rank == 0


def test_a_vanished_hook_is_the_harness_that_has_to_learn_and_the_text_names_it(judged):
    text = "megatron-core 0.99.0 has no x.y (hook 'plan', checked against 0.19.2)"
    gone = ExceptionEvidence(
        type="harness.production.hooks.MissingHookError", text=text, traceback="", origin="harness"
    )
    attempt, result = judged(exit_code=1, completed=False, exception=gone)
    assert attempt.verdict is Verdict.HARNESS_ERROR
    assert text in result.explanation


REFUSAL = ExceptionEvidence(
    type="ValueError",
    text="lengths divisible by cp_size, got seq_len=61, cp_size=4",
    traceback="",
    origin="build",
    declined=True,
)
LENGTHS = ExpectSpec(
    verdict=Verdict.REFUSED, exception="ValueError", text_has=("seq_len=61", "cp_size=4")
)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"type": "RuntimeError"}, "expected exception ValueError, the run showed RuntimeError"),
        ({"text": REFUSAL.text.replace("61", "64")}, "expected that the text says seq_len=61;"),
        ({"text": "lengths do not fit"}, "the text says seq_len=61 and cp_size=4;"),
    ],
)
def test_a_refusal_is_expected_only_in_its_type_and_with_its_facts(judged, changes, words):
    raised = replace(REFUSAL, **changes)
    attempt, result = judged(
        of=scenario(expect=LENGTHS), exit_code=1, completed=False, exception=raised
    )
    assert attempt.verdict is Verdict.REFUSED
    assert result.outcome is (Outcome.EXPECTED if words is None else Outcome.UNEXPECTED)
    assert (words or "") in result.explanation


def test_an_attempt_says_all_that_its_ranks_proved(judged):
    proof = replace(PROOF_132, certified="never certified", shims=("a",), evidence=("memo",))
    attempt, _result = judged(SELECTION, PATH, WINDOW, proof=proof)
    assert attempt.proof == proof
