"""The judge of paths: each deviation beside the healthy twin that has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.record.path import PathEvidence
from harness.runtime.journal import Journal, read_journal
from harness.runtime.judge_path import path_deviations
from harness.scenario.spec import (
    ExpectSpec,
    KernelsSpec,
    MicrobatchSpec,
    ModelSpec,
    ParallelSpec,
    Scenario,
)

SITE = {"global_rank": 0, "cp_rank": 0, "microbatch": 0, "layer": 1, "seed": 0}
OWN = {
    "q": "q",
    "k": "k",
    "w": "w",
    "cu_seqlens_q": "cu_seqlens_q_padded",
    "cu_seqlens_k": "cu_seqlens_kv_padded",
}
THD = PathEvidence(
    **SITE,
    backend="cudnn",
    plan="packed_thd",
    plan_source="build",
    reason="",
    scorer="scorer_thd",
    fused=True,
    calls={"indexer_forward": 1, "fused_topk": 1},
    ran="packed_thd",
    shares=OWN,
)
UNFUSED = replace(
    THD, plan="unfused_bounds", ran="unfused_bounds", fused=False, scorer="scorer_global_rows"
)
UNPACKED = MicrobatchSpec(sequences=(8,), qkv_format="sbhd")
PACKED = MicrobatchSpec(sequences=(8, 8))


def scenario(microbatch: MicrobatchSpec = PACKED, *, cp_size: int = 1, **expect) -> Scenario:
    return Scenario(
        id="t",
        summary="",
        model=ModelSpec(name="small"),
        kernels=KernelsSpec(dsa_kernel_backend="cudnn"),
        parallel=ParallelSpec(context_parallel_size=cp_size),
        microbatches=(microbatch,),
        expect=ExpectSpec(**expect),
    )


@pytest.fixture
def kinds(tmp_path):
    def judge(of: Scenario, *paths: PathEvidence, **facts) -> list[str]:
        ranks = sorted({path.global_rank for path in paths}) or [0]
        journals = []
        for rank in ranks:
            file = tmp_path / f"rank{rank}.jsonl"
            journal = Journal(file, global_rank=rank)
            for path in paths:
                if path.global_rank == rank:
                    journal.evidence(path)
            journal.close()
            journals.append(read_journal(file, global_rank=rank))
            file.unlink()
        return [deviation.kind for deviation in path_deviations(of, journals, facts)]

    return judge


def test_the_right_path_has_no_deviation(kinds):
    assert kinds(scenario(plan="packed_thd"), THD, has_scoring_plan=True) == []
    assert kinds(scenario(UNPACKED, cp_size=2), UNFUSED) == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (replace(THD, plan="packed_single", ran="packed_single"), ["plan"]),
        (replace(THD, plan="unknown"), ["unproved"]),
        (replace(THD, backend="none"), ["backend"]),
        (replace(THD, ran="unfused_bounds"), ["contradiction"]),
        (replace(UNFUSED, plan="packed_thd"), ["contradiction", "fallback"]),
        (UNFUSED, ["plan", "fallback"]),
        (replace(THD, plan_source="inferred"), ["unproved"]),
    ],
)
def test_each_deviation_has_its_kind(kinds, path: PathEvidence, kind: list[str]):
    of = scenario(cp_size=2, plan="packed_thd")
    found = kinds(of, path, has_scoring_plan=True)
    assert set(kind) <= set(found)
    assert kinds(of, THD, has_scoring_plan=True) == []


def test_a_silent_fallback_is_found_without_an_expected_plan(kinds):
    assert kinds(scenario(cp_size=2), UNFUSED) == ["fallback"]
    assert kinds(scenario(cp_size=2), THD) == []


def test_cp_size_does_not_stand_for_the_number_of_sequences(kinds):
    """Several sequences without CP are a THD call as well, so that falling back is a deviation."""
    assert kinds(scenario(cp_size=1), UNFUSED) == ["fallback"]


def test_no_journal_and_an_empty_one_prove_nothing(kinds):
    assert path_deviations(scenario(), (), {})[0].kind == "unproved"
    assert kinds(scenario()) == ["unproved"]


def test_thd_without_cp_is_one_call_on_own_memory(kinds):
    copied = replace(THD, shares=OWN | {"k": ""})
    part = replace(THD, shares=OWN | {"q": "part of q"})
    twice = replace(THD, calls={"indexer_forward": 2, "fused_topk": 1})
    assert kinds(scenario(), copied) == ["storage"]
    assert kinds(scenario(), part) == ["storage"]
    assert kinds(scenario(), twice) == ["calls"]
    assert kinds(scenario(cp_size=2), copied, twice) == [], "with CP keys are put in segments"


def test_explicit_positions_decline_without_a_kernel_call(kinds):
    explicit = replace(PACKED, key_positions="explicit")
    of = scenario(explicit, plan="decline", kernel_calls={"indexer_forward": 0})
    declined = replace(UNFUSED, plan="decline", ran="decline", calls={"naive_topk": 1})
    assert kinds(of, declined) == []
    assert kinds(of, replace(declined, calls={"indexer_forward": 1})) == ["calls"]


@pytest.mark.parametrize(
    ("told", "found"),
    [
        ([("unfused",), ()], []),
        ([(), ()], ["diagnostics"]),
        ([("unfused",), ("unfused",)], ["repeated_diagnostic"]),
        ([("unfused", "unfused"), ()], ["repeated_diagnostic"]),
        ([("unfused",), ("another",)], ["diagnostics"]),
    ],
    ids=["once", "never", "twice", "twice in one layer", "two of them"],
)
def test_an_intended_unfused_run_says_so_once(kinds, told, found):
    of = scenario(UNPACKED, cp_size=2, plan="unfused_bounds", diagnostics=1)
    paths = [replace(UNFUSED, seed=number, diagnostics=texts) for number, texts in enumerate(told)]
    assert kinds(of, *paths) == found


def test_ranks_behind_the_first_may_stay_silent_but_not_say_more(kinds):
    of = scenario(UNPACKED, cp_size=2, diagnostics=1)
    first = replace(UNFUSED, diagnostics=("unfused",))
    second = replace(UNFUSED, global_rank=1, cp_rank=1)
    assert kinds(of, first, second) == []
    assert kinds(of, first, replace(second, diagnostics=("unfused",))) == []
    assert kinds(of, first, replace(second, diagnostics=("a", "b"))) == ["diagnostics"]


def test_a_diagnostic_that_comes_twice_is_found_unasked(kinds):
    of = scenario(UNPACKED, cp_size=2)
    assert kinds(of, replace(UNFUSED, diagnostics=("unfused",))) == []
    twice = replace(UNFUSED, diagnostics=("unfused", "unfused"))
    assert kinds(of, twice) == ["repeated_diagnostic"]
