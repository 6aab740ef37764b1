"""Calls of another party's hook become deviations where the dispatcher broke the contract."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.record.hook_call import ALIVE, ELSEWHERE, REUSED, HookCallEvidence
from harness.record.phase import Phase
from harness.record.verdict import Verdict
from harness.runtime.journal import Entry, JournalContent
from harness.runtime.judge_hooks import hook_deviations
from harness.scenario.call_spec import ThirdPartyHookSpec
from harness.scenario.spec import KernelsSpec, MicrobatchSpec, ModelSpec, Scenario

PLAIN = "varlen_is_plain_causal"
RIGHT = HookCallEvidence(
    global_rank=1,
    cp_rank=1,
    microbatch=2,
    layer=1,
    seed=0,
    hook="run_fused_qk_topk",
    signature="exact",
    cp_size=2,
    given={"use_local_indexer_varlen": "True"},
    due={"use_local_indexer_varlen": "True"},
)
OFFERS = {"offers_layout_facts": True}


def scenario(hook="run_fused_qk_topk") -> Scenario:
    return Scenario(
        id="a",
        summary="b",
        model=ModelSpec(name="small"),
        kernels=KernelsSpec(third_party_hook=ThirdPartyHookSpec(hook=hook)),
        microbatches=(MicrobatchSpec(sequences=(8,)),),
    )


def judged(*calls, facts=OFFERS, of=None):
    entries = tuple(Entry(time_s=0.0, phase=Phase.SCORE, record=call) for call in calls)
    journal = JournalContent(global_rank=1, entries=entries)
    return hook_deviations(of or scenario(), [journal], facts)


@pytest.mark.parametrize("before", ["", ALIVE, REUSED])
def test_a_right_call_is_no_deviation(before):
    assert judged(replace(RIGHT, before=before)) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"barred": (PLAIN,)}, f"passed {PLAIN}, which the hook does not take"),
        ({"unknown": ("news",)}, "passed news, which the hook does not take"),
        ({"missing": ("cp_size",)}, "did not pass cp_size"),
        ({"given": {}}, "did not pass use_local_indexer_varlen"),
        (
            {"given": {"use_local_indexer_varlen": "False"}},
            "passed use_local_indexer_varlen = False, due is True",
        ),
        ({"num_positional": 2}, "passed 2 arguments by position"),
    ],
)
def test_each_fault_of_a_call_is_one_deviation_that_names_rank_and_microbatch(changes, words):
    (found,) = judged(replace(RIGHT, **changes))
    assert (found.verdict, found.kind) == (Verdict.WRONG_PATH, "hook_keywords")
    assert found.global_rank == 1
    assert found.text.startswith("microbatch 2, cp_size 2: run_fused_qk_topk of a third party")
    assert words in found.text


def test_a_fault_behind_a_dead_callables_id_is_a_stale_signature():
    call = replace(RIGHT, barred=(PLAIN,), before=REUSED)
    (found,) = judged(call)
    assert found.kind == "stale_signature"
    assert "with the id of a dead callable" in found.text
    # A build that looks at no signature cannot have kept one.
    (found,) = judged(call, facts={})
    assert found.kind == "hook_keywords"


def test_what_was_not_put_to_the_test_is_unproved():
    (found,) = judged()
    assert found.kind == "unproved"
    (found,) = judged(replace(RIGHT, before=ELSEWHERE))
    assert found.kind == "unproved"


def test_without_such_a_hook_nothing_is_judged():
    assert judged(of=scenario(hook=None)) == ()
