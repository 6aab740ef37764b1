"""What path evidence reads of the build: plan, log, memory of kernel operands, compile keys."""

from __future__ import annotations

import enum
import logging
from types import SimpleNamespace

import pytest
import torch

from harness.evidence.calls import kernel_calls
from harness.evidence.compiles import compiles
from harness.evidence.path import CANONICAL, path_evidence
from harness.evidence.storage import callers_tensors, shared_with
from harness.layout import PlanDecision, expected_plan, pack_sequences
from harness.production import preload  # noqa: F401 (imports Megatron once, warnings silenced)
from harness.production.diagnostics import messages_kept
from harness.production.recorder import Recorder
from harness.reference.site import Site

SITE = Site(global_rank=0, cp_rank=0, layer=1)
VARIANT = "megatron.core.transformer.experimental_attention_variant"
RIGHT = expected_plan(qkv_format="thd", cp_size=2, pack=pack_sequences([8, 8], cp_size=2))


class BuildPlan(enum.Enum):
    """Plan names of a build, one of which nobody has seen before."""

    MULTI = "packed_cp_multi"
    NEW = "packed_paged"


def path_of(recorder: Recorder, right: PlanDecision | None = RIGHT):
    return path_evidence(recorder, SITE, "cudnn", right)


def called(*symbols: str, plan: BuildPlan | None = None) -> Recorder:
    recorder = Recorder()
    if plan is not None:
        decision = SimpleNamespace(plan=plan, reason="because")
        recorder.record("plan", "megatron", None, {}, lambda: decision)
    for symbol in symbols:
        recorder.record(symbol, "megatron", None, {}, lambda: None)
    return recorder


def test_plan_and_reason_are_read_and_mapped():
    path = path_of(called("fused_topk", "scorer_thd", plan=BuildPlan.MULTI))
    assert (path.plan, path.plan_source, path.reason) == ("packed_thd", "build", "because")
    assert (path.build_plan, path.ran) == ("packed_cp_multi", "packed_thd")
    assert path.right_plan == "packed_thd" and "2 packed sequences" in path.right_reason


def test_without_a_plan_it_is_inferred():
    path = path_of(called("fused_topk", "scorer_thd"))
    assert (path.plan, path.plan_source, path.build_plan) == ("packed_thd", "inferred", None)


def test_a_plan_that_the_calls_contradict_keeps_both():
    path = path_of(called("fused_topk", "scorer_global_rows", plan=BuildPlan.MULTI))
    assert (path.plan, path.ran, path.fused) == ("packed_thd", "unfused_bounds", False)


def test_a_plan_of_an_unknown_name_is_unknown():
    path = path_of(called("fused_topk", "scorer_thd", plan=BuildPlan.NEW))
    assert path.plan == "unknown"
    assert "packed_paged" in path.reason


def test_every_canonical_name_is_reached():
    names = {"plain_causal", "packed_single", "packed_thd", "unfused_bounds", "decline"}
    assert set(CANONICAL.values()) == names


def test_dispatchers_are_kept_with_what_they_returned():
    recorder = called("dispatch_attention", "naive_topk")
    path = path_of(recorder)
    assert path.dispatched == {"dispatch_attention": "none"}
    assert path.plan == "decline" and "dispatch_attention" in path.reason


@pytest.mark.parametrize(("source", "about_path"), [("dsa_scoring_plan", True), ("csa", False)])
def test_warnings_of_the_path_are_kept_by_layer(source: str, about_path: bool):
    recorder = Recorder()
    with messages_kept(recorder):
        recorder.record("naive_topk", "megatron", None, {}, lambda: None)
        logging.getLogger(f"{VARIANT}.{source}").warning("unfused loop")
        recorder.layer = 2
        logging.getLogger(f"{VARIANT}.{source}").warning("again")
    logging.getLogger(f"{VARIANT}.{source}").debug("after the forward")
    assert path_of(recorder).diagnostics == (("unfused loop",) if about_path else ())


def test_breadcrumbs_tell_why_a_hook_declined_and_are_no_diagnostics():
    recorder = called("dispatch_attention", "naive_topk")
    with messages_kept(recorder):
        logging.getLogger(f"{VARIANT}.dsa_kernels").debug("backend returned None")
    path = path_of(recorder)
    assert path.reason.endswith("backend returned None")
    assert path.diagnostics == ()


def test_log_lines_of_the_previous_forward_are_forgotten():
    recorder = Recorder()
    with messages_kept(recorder):
        logging.getLogger(f"{VARIANT}.dsa_kernels").warning("first")
        recorder.clear()
        recorder.record("naive_topk", "megatron", None, {}, lambda: None)
    assert path_of(recorder).diagnostics == ()


def thd_call(recorder: Recorder, *, copied: str = "") -> None:
    """One dispatcher call and the scoring kernel call inside it, on the caller's own memory."""
    rows = torch.zeros(6, 1, 2, 8)
    params = SimpleNamespace(
        cu_seqlens_q=torch.tensor([0, 2, 5], dtype=torch.int32),
        cu_seqlens_kv=torch.tensor([0, 2, 5], dtype=torch.int32),
        cu_seqlens_q_padded=torch.tensor([0, 3, 6], dtype=torch.int32),
        cu_seqlens_kv_padded=torch.tensor([0, 3, 6], dtype=torch.int32),
    )
    given = {
        "q": rows,
        "k": torch.zeros(6, 1, 8),
        "weights": torch.zeros(6, 1, 2),
        "packed_seq_params": params,
    }
    kernel = {
        "q": rows.transpose(0, 1)[0],
        "k": given["k"].transpose(0, 1)[0].unsqueeze(1),
        "w": given["weights"].transpose(0, 1)[0],
        "cu_seqlens_q": params.cu_seqlens_q_padded,
        "cu_seqlens_k": params.cu_seqlens_kv_padded,
    }
    if copied:
        kernel[copied] = kernel[copied].clone()

    def dispatch() -> None:
        recorder.record("indexer_forward", "modelled", None, kernel, lambda: {"scores": rows})

    recorder.record("dispatch_topk", "megatron", None, given, dispatch)


def test_memory_of_the_caller_is_told_from_copies():
    recorder = Recorder()
    thd_call(recorder)
    own = {
        "q": "q",
        "k": "k",
        "w": "w",
        "cu_seqlens_q": "cu_seqlens_q_padded",
        "cu_seqlens_k": "cu_seqlens_kv_padded",
    }
    assert path_of(recorder).shares == own
    (call,) = kernel_calls(recorder, SITE)
    assert {facts.name: facts.shares for facts in call.tensors} == own
    assert all(facts.address for facts in call.tensors)


@pytest.mark.parametrize("copied", ["q", "k", "w", "cu_seqlens_q", "cu_seqlens_k"])
def test_a_copy_shares_nothing(copied: str):
    recorder = Recorder()
    thd_call(recorder, copied=copied)
    shares = path_of(recorder).shares
    assert [name for name, whose in shares.items() if not whose] == [copied]


def test_a_part_is_said_to_be_one_and_meta_tensors_have_no_memory():
    recorder = Recorder()
    thd_call(recorder)
    callers = callers_tensors(recorder, 1)
    assert shared_with(callers["q"][2:], callers) == "part of q"
    assert shared_with(torch.zeros(3, device="meta"), callers) == ""
    assert callers_tensors(recorder, 2) == {}


def kernel_call(recorder: Recorder, symbol: str, rows: int, columns: int, **flags: object) -> None:
    arguments = {"input_values": torch.zeros(rows, columns), **flags}
    recorder.record(symbol, "modelled", None, arguments, lambda: None)


def test_top_k_compiles_once_per_bucket_of_columns():
    recorder = Recorder()
    for columns in (65, 100, 128):
        kernel_call(recorder, "indexer_top_k", 8, columns, top_k=16)
    assert compiles(recorder, 1) == ({"indexer_top_k": 1}, {"indexer_top_k": 1})
    recorder.clear()
    kernel_call(recorder, "indexer_top_k", 8, 90, top_k=16)
    kernel_call(recorder, "indexer_top_k", 149, 90, top_k=16)
    kernel_call(recorder, "indexer_top_k", 8, 129, top_k=16)
    kernel_call(recorder, "indexer_top_k", 8, 90, top_k=17)
    assert compiles(recorder, 1) == ({"indexer_top_k": 4}, {"indexer_top_k": 3})


def test_other_kernels_compile_for_every_shape():
    recorder = Recorder()
    for rows in (8, 8, 9):
        kernel_call(recorder, "indexer_forward", rows, 4, ratio=1)
    assert compiles(recorder, 1)[0] == {"indexer_forward": 2}
    assert compiles(recorder, 2) == ({}, {})
