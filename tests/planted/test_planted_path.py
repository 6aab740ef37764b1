"""Planted faults of path reports and layout memo, through real ranks."""

from __future__ import annotations

import os

import pytest
from planted_runs import Run, run, write_scenario

from harness.production.locate import find_build
from harness.production.probes import build_facts
from harness.record.verdict import Outcome, Verdict

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(300)]

SAYS = """\
id: {id}
summary: Planted in a test.
model: small
level: attention
kernels: {{dsa_kernel_backend: cudnn, source: modelled, modelled: {{cudnn_frontend: "1.25.0"}}}}
parallel: {{context_parallel_size: {cp}}}
microbatches: [{{sequences: [32], qkv_format: sbhd}}]
values: {{seeds: [0, 1]}}
expect: {{verdict: pass, plan: plain_causal}}
limits: {{time_s: {time_s}}}
"""
KEEPS = """\
id: {id}
summary: Planted in a test.
model: {{base: small, num_layers: 2}}
level: model
kernels: {{dsa_kernel_backend: none}}
parallel: {{context_parallel_size: {cp}}}
microbatches: [{{sequences: [32, 16]}}, {{sequences: [32, 16]}}]
expect: {{verdict: pass, layout_builds_per_microbatch: 1}}
limits: {{time_s: {time_s}}}
"""


def kinds(run: Run, name: str) -> dict[int | None, set[str]]:
    """Kinds of deviations by rank."""
    found: dict[int | None, set[str]] = {}
    for deviation in run.results[name].last.deviations:
        found.setdefault(deviation.global_rank, set()).add(deviation.kind)
    return found


def test_a_warning_that_comes_with_every_forward_is_found(tmp_path):
    paths = [
        write_scenario(tmp_path, f"{prefix}/warning", cp=1, text=SAYS)
        for prefix in ("planted", "healthy")
    ]
    injected = "second_diagnostic@0:score@planted/warning"
    done = run(1, paths, tmp_path / "runs", "--inject", injected)
    planted, healthy = (done.results[f"{prefix}/warning"] for prefix in ("planted", "healthy"))
    assert (planted.verdict, planted.outcome) == (Verdict.WRONG_PATH, Outcome.UNEXPECTED)
    assert kinds(done, "planted/warning") == {0: {"repeated_diagnostic"}}
    assert healthy.verdict is Verdict.PASS, healthy.explanation


CHECKOUT = os.environ.get("DSA_MEGATRON_WITH_MEMO", "")


def has_memo() -> bool:
    return bool(CHECKOUT) and build_facts(find_build(CHECKOUT))["has_layout_memo"]


@pytest.mark.skipif(
    not has_memo(), reason="missing: a Megatron checkout with a layout memo, DSA_MEGATRON_WITH_MEMO"
)
def test_faults_of_a_builds_own_memo_are_found(tmp_path):
    names = ("planted/double", "planted/stale", "healthy/memo")
    paths = [write_scenario(tmp_path, name, cp=2, text=KEEPS) for name in names]
    done = run(
        2,
        paths,
        tmp_path / "runs",
        *("--megatron", CHECKOUT),
        *("--inject", "double_build@1:score@planted/double"),
        *("--inject", "stale_memo@0:score@planted/stale"),
    )
    assert done.results["planted/double"].verdict is Verdict.WRONG_MEMO
    assert kinds(done, "planted/double") == {1: {"rebuilt", "builds"}}
    # Equal packs: the tables are right by content, and still another microbatch's.
    assert done.results["planted/stale"].verdict is Verdict.WRONG_MEMO
    assert kinds(done, "planted/stale") == {0: {"stale", "builds"}}
    healthy = done.results["healthy/memo"]
    assert healthy.verdict is Verdict.PASS, healthy.explanation
    assert all(memo.builds == 1 for memo in healthy.last.memos)
