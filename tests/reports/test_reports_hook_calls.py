"""Faulty calls of another party's hook are told once for all ranks; right ones are not told."""

from __future__ import annotations

from dataclasses import replace

from harness.record.hook_call import HookCallEvidence
from reports.hook_calls import hook_findings

RIGHT = HookCallEvidence(
    global_rank=0,
    cp_rank=0,
    microbatch=0,
    layer=1,
    seed=0,
    hook="run_fused_qk_topk",
    signature="exact",
    cp_size=2,
)


def test_ranks_and_microbatches_of_a_fault_are_taken_together():
    barred = replace(RIGHT, barred=("varlen_is_plain_causal",))
    calls = [
        RIGHT,
        *(replace(barred, global_rank=rank, microbatch=m) for rank in (0, 1) for m in (1, 2)),
        replace(RIGHT, global_rank=3, missing=("cp_size",)),
    ]
    first, second = (finding.text for finding in hook_findings(calls))
    assert first == (
        "run_fused_qk_topk, signature exact, cp_size 2: the dispatcher passed "
        "varlen_is_plain_causal, which the hook does not take; on global_rank 0, 1, microbatch 1, 2"
    )
    assert second.endswith("did not pass cp_size; on global_rank 3, microbatch 0")


def test_right_calls_are_not_told():
    assert list(hook_findings([RIGHT, replace(RIGHT, global_rank=1)])) == []
