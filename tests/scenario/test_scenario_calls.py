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
TOP_K = KERNEL.replace("indexer_backward, keys: 40, selected: 20", "indexer_top_k, keys: 200")
MASKED = TOP_K.replace("indexer_top_k", "indexer_forward, position: 3, offsets: given")
PLANTED = """\
id: calls/planted
summary: A faulty twin.
model: small
parallel: {context_parallel_size: 2}
microbatches: [{sequences: [128, 64]}]
inject: [past_limit@1:select]
known:
  - when: {megatron_core: ">=0.16"}
    verdict: out_of_bounds
    link: https://github.com/NVIDIA/Megatron-LM/pull/6206
"""
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


@pytest.mark.parametrize("text", [KERNEL, ATTENTION, TOP_K, MASKED, PLANTED, PERTURB])
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
        (TOP_K, "keys: 200", "keys: 200, slots: 9", "indexer_top_k has no such argument"),
        (TOP_K, "keys: 200", "keys: 200, position: 9", "indexer_top_k has no such argument"),
        (TOP_K, "keys: 200", "keys: 200, edits: [{slot: 0, id: 1}]", "no slots to edit"),
        (TOP_K, "keys: 200", "keys: 200, scores: plateau", "above counts keys of scores"),
        (TOP_K, "keys: 200", "keys: 200, above: 9", "above counts keys of scores"),
        (TOP_K, "keys: 200", "keys: 200, scores: few_finite, above: 201", "above counts keys"),
        (MASKED, "keys: 200", "keys: 200, scores: nan", "indexer_forward has no such argument"),
        (MASKED, "keys: 200", "keys: 200, selected: 9", "indexer_forward has no such argument"),
        (MASKED, "keys: 200", "keys: 200, edits: [{length: 1}]", "neither slots nor lengths"),
        (KERNEL, "keys: 40", "keys: 40, deterministic: true", "has no such argument"),
        (KERNEL, "keys: 40", "keys: 40, offsets: given", "has no such argument"),
        (PLANTED, "@1:", "@2:", "rank 2 is outside the scenario's 2 ranks"),
        (PLANTED, PLANTED[PLANTED.index("known:") :], "", "needs a known rule"),
        (PLANTED, "past_limit@1:select", "past_limit", "KIND@rank:phase"),
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


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (TOP_K + "known: [{when: {source: modelled}, verdict: wrong_selection, link: LINK}]", 0),
        (PLANTED.replace("out_of_bounds", "wrong_selection"), 0),
        (PLANTED.replace("inject: [past_limit@1:select]\n", "").replace("out_of_b", "b"), None),
    ],
)
def test_a_wrong_selection_is_predicted_where_a_caller_makes_it(problems_of, text, asked):
    text = text.replace("LINK", "https://github.com/NVIDIA/Megatron-LM/pull/6206")
    if asked is None:
        text = text.replace("bounds", "wrong_selection")
    found = [line for line in problems_of(text) if "needs as" in line]
    assert len(found) == (1 if asked is None else 0)


def test_an_injection_of_an_unknown_kind_is_refused_before_anything_runs(tmp_path):
    from harness.runtime.options import Options, UsageError
    from harness.runtime.plan import plan
    from harness.runtime.world import World

    path = tmp_path / "case.yaml"
    path.write_text(PLANTED.replace("past_limit", "past_limits"))
    world = World(global_rank=0, local_rank=0, world_size=2, local_world_size=2)
    with pytest.raises(UsageError, match="no kind 'past_limits'"):
        plan(load([path]).scenarios, world, Options(), num_gpus=0)
