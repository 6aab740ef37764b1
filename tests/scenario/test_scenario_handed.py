"""Rules over boundaries, strides, another party's hook, and the words of an expected refusal."""

from typing import get_args

import pytest

from harness.scenario.call_spec import HookName, HookSignature
from harness.scenario.names import BOUNDARIES, HOOK_SIGNATURES, THIRD_PARTY_HOOKS
from harness.scenario.problems import Severity
from harness.scenario.spec import Boundaries

HEAD = "id: case/rule\nsummary: One rule.\nmodel: small\n"
CP2 = "parallel: {context_parallel_size: 2}\n"
FUSED = "level: attention\nkernels: {dsa_kernel_backend: cudnn, third_party_hook: {hook: %s}}\n"
SPARSE = (
    "training: {backward: true, dsa_indexer_loss_coeff: 0.1, dsa_indexer_use_sparse_loss: %s}\n"
)
KNOWN = "known: [{when: {arch: sm90}, verdict: %s, text_has: [a], link: 'https://x.y'}]\n"


def pack(text: str, extra: str = CP2) -> str:
    return f"{HEAD}{extra}microbatches: [{{{text}}}]\n"


def one(extra: str) -> str:
    return pack("sequences: [64]", extra)


BROKEN = [
    (pack("sequences: [8, 8], qkv_format: sbhd, boundaries: shared"),
     pack("sequences: [8, 8], boundaries: shared"), "thd only"),
    (pack("sequences: [8, 8], kv_sequences: [16, 8], boundaries: shared"),
     pack("sequences: [8, 8], kv_sequences: [8, 8], boundaries: shared"),
     "gives the keys the lists of the queries"),
    (pack("sequences: [8, 8], kv_sequences: [16, 8], boundaries: query_only"),
     pack("sequences: [8, 8], kv_sequences: [16, 8], boundaries: strided"),
     "gives the keys the lists of the queries"),
    (pack("sequences: [8, 5], boundaries: one"),
     pack("sequences: [8, 4], boundaries: one"), "(8, 5) is padded to (8, 8)"),
    (pack("sequences: [8, 5], boundaries: real_only"),
     pack("sequences: [8, 5], boundaries: real_only", CP2 + "expect: {verdict: refused}\n"),
     "hands over no padded lists"),
    (pack("sequences: [8], boundaries: sharde"), pack("sequences: [8], boundaries: shared"),
     "did you mean shared"),
    (one("level: model\nvalues: {strided: true}\n"), one("values: {strided: true}\n"),
     "found level model"),
    (one("level: scorer\nkernels: {dsa_kernel_backend: cudnn, third_party_hook: "
         "{hook: run_fused_qk_topk}}\n"),
     one(FUSED % "run_fused_qk_topk"), "at level attention"),
    (one(FUSED % "run_fused_qk_topk_with_loss"),
     one(FUSED % "run_fused_qk_topk_with_loss" + SPARSE % "true"), "sparse indexer loss"),
    (one(FUSED % "run_fused_qk_topk_with_loss" + SPARSE % "false"),
     one(FUSED % "run_fused_dsa_attention" + SPARSE % "false"), "sparse indexer loss"),
    (one(FUSED % "run_fused_qk_topk" + SPARSE % "true"),
     one(FUSED % "run_fused_dsa_attention" + SPARSE % "true"), "is not asked where"),
    (one("expect: {verdict: pass, text_has: [a]}\n"),
     one("expect: {verdict: refused, text_has: [a]}\n"), "text_has is about an exception"),
    (one("expect: {exception: ValueError}\n"),
     one("expect: {verdict: crash, exception: ValueError}\n"), "exception is about an exception"),
    (one(KNOWN % "wrong_path"), one(KNOWN % "refused"), "text_has is about an exception"),
]  # fmt: skip


@pytest.mark.parametrize(("broken", "healthy", "words"), BROKEN)
def test_a_broken_rule_is_an_error_beside_its_healthy_twin(load_text, broken, healthy, words):
    errors = [p for p in load_text(broken).problems if p.severity is Severity.ERROR]
    assert len(errors) == 1, errors
    assert words in errors[0].message
    assert load_text(healthy).ok


def test_names_of_files_are_those_that_ranks_know():
    assert get_args(Boundaries) == tuple(BOUNDARIES)
    assert get_args(HookName) == tuple(THIRD_PARTY_HOOKS)
    assert get_args(HookSignature) == tuple(HOOK_SIGNATURES)
