"""The plan inferred from calls: one case per plan, and the cases that prove no path."""

from __future__ import annotations

import pytest

from harness.evidence.path import infer_plan, path_evidence
from harness.production.recorder import Recorder
from harness.reference.site import Site


@pytest.mark.parametrize(
    ("symbols", "backend", "plan", "scorer"),
    [
        (["fused_topk", "scorer_single", "scorer_chunks"], "cudnn", "packed_single", "single"),
        (["fused_topk", "scorer_thd"], "cudnn", "packed_thd", "thd"),
        (["fused_topk", "scorer_chunks", "scorer_global_rows"], "cudnn", "unfused_bounds", "rows"),
        (["fused_topk", "scorer_chunks"], "cudnn", "plain_causal", "chunks"),
        (["dispatch_attention", "naive_topk"], "cudnn", "decline", "naive_topk"),
        (["naive_topk"], "none", "none", "naive_topk"),
        (["attention", "indexer"], "cudnn", "unknown", "none"),
    ],
)
def test_plan_of_calls(symbols, backend, plan, scorer):
    found, reason, name = infer_plan(dict.fromkeys(symbols, 1), backend)
    assert found == plan
    assert scorer in name
    assert reason


def test_reason_tells_a_decline_from_a_dispatcher_never_asked():
    asked = infer_plan({"dispatch_attention": 1, "naive_topk": 1}, "cudnn")[1]
    silent = infer_plan({"use_fused": 1, "naive_topk": 1}, "cudnn")[1]
    assert "declined" in asked
    assert "never asked" in silent


def test_layers_are_told_apart():
    recorder = Recorder()
    for layer, symbol in ((1, "scorer_thd"), (2, "naive_topk")):
        recorder.layer = layer
        recorder.record(symbol, "megatron", None, {}, lambda: None)
    first = path_evidence(recorder, Site(global_rank=0, cp_rank=0, layer=1), "cudnn")
    second = path_evidence(recorder, Site(global_rank=0, cp_rank=0, layer=2), "cudnn")
    assert (first.plan, first.fused) == ("packed_thd", True)
    assert (second.plan, second.fused) == ("decline", False)
