"""Rules of level ``kernel`` and of broken calls: each broken once, beside a sound twin."""

from __future__ import annotations

import pytest

from harness.scenario.loader import load
from harness.scenario.verify import verify

KERNEL = """\
id: calls/kernel
summary: One call.
model: {base: small, dsa_indexer_n_heads: 64, dsa_indexer_topk: 128}
level: kernel
kernels: {dsa_kernel_backend: cudnn, source: modelled}
microbatches: [{sequences: [4, 4], qkv_format: sbhd}]
kernel_call: {wrapper: indexer_backward, keys: 40, selected: 20}
"""
ATTENTION = KERNEL.replace("indexer_backward,", "sparse_attention_backward, lengths: slots,")
PERTURB = """\
id: calls/perturb
summary: One call broken.
model: small
kernels: {dsa_kernel_backend: cudnn, source: modelled}
parallel: {context_parallel_size: 2}
microbatches: [{sequences: [128, 64]}]
training: {backward: true}
perturb: {fact: device}
"""


@pytest.fixture
def problems_of(tmp_path):
    def read(text: str) -> list[str]:
        path = tmp_path / "case.yaml"
        path.write_text(text)
        return [problem.message for problem in load([path]).problems]

    return read


@pytest.mark.parametrize("text", [KERNEL, ATTENTION, PERTURB])
def test_sound_files_have_no_problem(problems_of, text):
    assert problems_of(text) == []


@pytest.mark.parametrize(
    ("text", "found", "replaced", "message"),
    [
        (KERNEL, "kernel_call:", "#", "level kernel needs kernel_call.wrapper"),
        (KERNEL, "level: kernel", "level: attention", "kernel_call is for level kernel"),
        (KERNEL, "backend: cudnn, source: modelled", "backend: none", "calls wrappers of backend"),
        (KERNEL, "qkv_format: sbhd", "qkv_format: thd", "takes a batch of equal lengths"),
        (KERNEL, "selected: 20", "selected: 41", "41 selected keys do not go into 40 keys"),
        (KERNEL, "selected: 20", "selected: 20, slots: 16", "do not go into 16 slots"),
        (KERNEL, "selected: 20", "selected: 20, lengths: slots", "has no such argument"),
        (KERNEL, "selected: 20", "edits: [{slot: 3}]", "slot and id, or length alone"),
        (KERNEL, "selected: 20", "edits: [{row: 4, slot: 3, id: 0}]", "row 4 is outside the call"),
        (KERNEL, "selected: 20", "edits: [{batch: 2, slot: 3, id: 0}]", "batch 2 is outside"),
        (KERNEL, "selected: 20", "edits: [{slot: 128, id: 0}]", "slot 128 is outside the call"),
        (KERNEL, "selected: 20", "edits: [{length: 0}]", "no lengths to edit"),
        (KERNEL, "indexer_backward", "indexer_backwards", "no kernel wrapper named"),
        (ATTENTION, "lengths: slots", "d_index_k: zeroed", "has no such argument"),
        (KERNEL, "level: kernel", "level: kernel\noverlays: [causal_offsets]", "remove them"),
        (PERTURB, "parallel:", "level: scorer\nparallel:", "breaks the production call"),
        (PERTURB, "backend: cudnn, source: modelled", "backend: none", "breaks the production"),
        (PERTURB, "fact: device", "fact: divice", "did you mean device?"),
        (PERTURB, "fact: device", "fact: device, ranks: [2]", "rank 2 is outside"),
        (
            PERTURB.replace("training: {backward: true}\n", ""),
            "fact: device",
            "fact: gradient_arity",
            "needs training.backward",
        ),
    ],
)
def test_each_rule_speaks_up(problems_of, text, found, replaced, message):
    assert text.count(found) >= 1
    problems = problems_of(text.replace(found, replaced))
    assert any(message in problem for problem in problems), problems


def test_edits_of_lengths_need_lengths_only(problems_of):
    assert (
        problems_of(ATTENTION.replace("keys: 40", "keys: 40, edits: [{row: 1, length: 0}]")) == []
    )


def test_a_broken_call_has_no_plan_to_warn_of(problems_of):
    text = PERTURB.replace("device", "missing_ends") + "expect: {plan: decline}\n"
    assert problems_of(text) == []
    assert len(problems_of(text.replace("perturb: {fact: missing_ends}\n", ""))) == 1


def test_verification_says_what_is_called(tmp_path):
    path = tmp_path / "case.yaml"
    path.write_text(KERNEL)
    (note,) = verify(load([path]).scenarios[0].scenario).notes
    assert note.startswith("indexer_backward is called on its own: 40 keys, 128 slots, 20 keys")
