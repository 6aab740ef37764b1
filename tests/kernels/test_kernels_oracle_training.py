"""The installed release's own checks of the training wrappers, beside the model's refusals.

One query row throughout: with more of them the real SM90 recompute would use a device (to lay its
statistics out) before it looks at head counts.
"""

from __future__ import annotations

import importlib

import pytest
import torch
from kernel_oracle import (
    CAPABILITY,
    VERSION,
    Make,
    assert_same,
    outcome,
    pretended_device,
)
from torch._subclasses.fake_tensor import FakeTensorMode
from training_inputs import without

from harness.kernels import CompileFailure
from harness.kernels.detect import installed_facts

pytestmark = [
    pytest.mark.skipif(
        VERSION != "1.32.0",
        reason="needs nvidia-cudnn-frontend 1.32.0, whose internals the patches name",
    ),
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),
]


@pytest.fixture(scope="module")
def real():
    facts = installed_facts()
    if facts.reason is not None:
        pytest.skip(f"needs the CuTe DSL to import the wrappers: {facts.reason}")
    from cudnn import DSA

    # Touch the modules that the patches name.
    _ = DSA.IndexerBackward, DSA.SparseAttentionBackward, DSA.SparseAttnScoreRecompute
    for name in (
        "score_recompute._interface_sm90",
        "sparse_attention_backward._interface_sm90",
        "sparse_attention_backward._interface_sm100_d576",
    ):
        importlib.import_module(f"cudnn.deepseek_sparse_attention.{name}")
    return DSA


def cases(build, **changes):
    """Name to case: the arguments of ``build`` with one of them changed, and its keywords."""
    made = {}
    for name, change in changes.items():
        made[name] = lambda m, change=change: build(m, **change)
    return made


def half(name):
    return {"change": {name: lambda t: t.half()}}


def cut(name):
    return {"change": {name: lambda t: t.new_zeros(*t.shape[:-1], t.shape[-1] - 1)}}


def strided(name):
    return {"change": {name: lambda t: torch.cat([t, t], -1)[..., ::2]}}


def changed(arguments, change):
    return [
        change[name](value) if change and name in change else value
        for name, value in arguments.items()
    ]


def sparse_backward(m, heads=64, slots=128, depth=128, change=None, grad_loss=None, **keywords):
    arguments = {
        "q": m.bf16(1, 1, heads, depth),
        "w": m.bf16(1, 1, heads),
        "k": m.bf16(1, 8, depth),
        "target": m.fp32(1, 1, slots),
        "predict": m.fp32(1, 1, slots),
        "ids": m.int32_zeros(1, 1, slots),
        "grad_loss": m.fp32(1) if grad_loss is None else grad_loss(m),
    }
    made = {name: value(m) if callable(value) else value for name, value in keywords.items()}
    return changed(arguments, change), made


SPARSE_BACKWARD = cases(
    sparse_backward,
    plain={},
    **{f"heads_{heads}": {"heads": heads} for heads in (16, 32, 48, 64, 96, 128)},
    **{f"slots_{slots}": {"slots": slots} for slots in (0, 100, 64, 384, 768)},
    block={"slots": 64, "block_I": 64},
    number={"grad_loss": lambda m: 1.0},
    wide_loss={"grad_loss": lambda m: m.fp32(2)},
    half_loss={"grad_loss": lambda m: m.bf16(1)},
    half_q=half("q"),
    half_w=half("w"),
    half_target=half("target"),
    long_ids={"change": {"ids": lambda t: t.long()}},
    flat_q={"change": {"q": lambda t: t[0]}},
    flat_ids={"change": {"ids": lambda t: t[0]}},
    cut_w=cut("w"),
    cut_target=cut("target"),
    cut_k=cut("k"),
    strided_predict=strided("predict"),
    fp32_d_k={"d_index_k": lambda m: m.fp32(1, 8, 128)},
    half_d_k={"d_index_k": lambda m: m.fp32(1, 8, 128).half()},
    fp32_d_w={"d_weights": lambda m: m.fp32(1, 1, 64)},
    second={"backend": "sm100_v2"},
    second_fp32={"backend": "sm100_v2", "d_weights": lambda m: m.fp32(1, 1, 64)},
    second_heads={"backend": "sm100_v2", "heads": 128},
    second_scale={"backend": "sm100_v2", "sm_scale": 0.0},
    third={"backend": "sm100_v3"},
    planes={"deterministic_dk_planes": 128},
    deterministic_heads={"deterministic": True, "heads": 128},
    deterministic_depth={"deterministic": True, "depth": 64},
    small_workspace={"workspace": lambda m: m.fp32(10)},
    workspace={"workspace": lambda m: m.fp32(1024)},
)


def dense_backward(m, heads=64, keys=8, change=None, grad_loss=None, **keywords):
    arguments = {
        "q": m.bf16(1, 1, heads, 128),
        "w": m.bf16(1, 1, heads),
        "k": m.bf16(1, keys, 128),
        "attention": m.fp32(1, 1, keys),
        "norm": m.fp32(1, 1),
        "scores": m.fp32(1, 1, keys),
        "lse": m.fp32(1, 1),
        "grad_loss": m.fp32(1) if grad_loss is None else grad_loss(m),
    }
    made = {name: value(m) if callable(value) else value for name, value in keywords.items()}
    return changed(arguments, change), made


DENSE_BACKWARD = cases(
    dense_backward,
    plain={},
    **{f"heads_{heads}": {"heads": heads} for heads in (32, 48, 64, 128)},
    number={"grad_loss": lambda m: 1.0},
    wide_loss={"grad_loss": lambda m: m.fp32(2)},
    half_q=half("q"),
    half_norm=half("norm"),
    cut_w=cut("w"),
    cut_scores=cut("scores"),
    cut_k=cut("k"),
    flat_q={"change": {"q": lambda t: t[0]}},
    block={"block_I": 0},
    ratio={"ratio": 0},
    offsets={"q_causal_offsets": lambda m: m.int32(3)},
    long_offsets={"q_causal_offsets": lambda m: m.int32(3).long()},
    wide_offsets={"q_causal_offsets": lambda m: m.int32(3, 4)},
    one_prefix={"cu_seqlens_q": lambda m: m.int32(0, 1)},
    half_d_k={"d_index_k": lambda m: m.fp32(1, 8, 128).half()},
    fp32_d_q={"d_index_q": lambda m: m.fp32(1, 1, 64, 128)},
    cut_d_k={"d_index_k": lambda m: m.bf16(1, 7, 128)},
)


def sparse_recompute(attention):
    def build(m, heads=64, depth=576, slots=128, length=False, change=None, **keywords):
        depth = depth if attention else 128
        arguments = {
            "q": m.bf16(1, 1, heads, depth),
            "k": m.bf16(1, 8, depth),
            "per_head": m.fp32(1, 1, heads) if attention else m.bf16(1, 1, heads),
            "ids": m.int32_zeros(1, 1, slots),
            **({"scale": 0.1} if attention else {}),
        }
        made = {name: value(m) if callable(value) else value for name, value in keywords.items()}
        if length:
            made["topk_length"] = m.int32_zeros(1, 1)
        return changed(arguments, change), made

    return build


SPARSE_CHANGES = dict(
    plain={},
    lengths={"length": True},
    **{f"heads_{heads}": {"heads": heads} for heads in (1, 16, 32, 48, 96, 128)},
    **{f"slots_{slots}": {"slots": slots} for slots in (64, 100, 384)},
    slots_64_lengths={"slots": 64, "length": True},
    half_q=half("q"),
    half_per_head=half("per_head"),
    long_ids={"change": {"ids": lambda t: t.long()}},
    cut_k=cut("k"),
    cut_per_head=cut("per_head"),
    flat_q={"change": {"q": lambda t: t[0]}},
    strided_q=strided("q"),
    qhead={"qhead_per_kv_head": 32},
    wide_lengths={"topk_length": lambda m: m.int32_zeros(1, 2)},
    out={"out": lambda m: m.fp32(1, 1, 128)},
    cut_out={"out": lambda m: m.fp32(1, 1, 127)},
    half_out={"out": lambda m: m.bf16(1, 1, 128)},
)
SPARSE_ATTENTION = cases(
    sparse_recompute(True),
    **SPARSE_CHANGES,
    heads_96_512={"heads": 96, "depth": 512},
    depth_100={"depth": 100},
)
# 48 and 96 heads were compiled: the real kernels take them, where attention's do not.
SPARSE_INDEXER = cases(sparse_recompute(False), **SPARSE_CHANGES)


def dense_recompute(attention):
    def build(m, heads=64, change=None, **keywords):
        depth = 576 if attention else 128
        arguments = {
            "q": m.bf16(1, 1, heads, depth),
            "k": m.bf16(1, 8, 1, depth),
            "per_head": m.fp32(1, 1, heads) if attention else m.bf16(1, 1, heads),
            **({"scale": 0.1} if attention else {}),
        }
        made = {name: value(m) if callable(value) else value for name, value in keywords.items()}
        return changed(arguments, change), made

    return build


DENSE_CHANGES = dict(
    plain={},
    **{f"heads_{heads}": {"heads": heads} for heads in (1, 16, 32, 48, 128)},
    half_q=half("q"),
    half_per_head=half("per_head"),
    cut_k=cut("k"),
    cut_per_head=cut("per_head"),
    flat_q={"change": {"q": lambda t: t[0]}},
    ratio={"ratio": 0},
    qhead={"qhead_per_kv_head": 32},
    one_prefix={"cu_seqlens_q": lambda m: m.int32(0, 1)},
    offsets={"q_causal_offsets": lambda m: m.int32(3)},
    long_offsets={"q_causal_offsets": lambda m: m.int32(3).long()},
    wide_offsets={"q_causal_offsets": lambda m: m.int32(3, 4)},
    out={"out": lambda m: m.fp32(1, 1, 8)},
    cut_out={"out": lambda m: m.fp32(1, 1, 7)},
    half_denom={"denom_out": lambda m: m.bf16(1, 1)},
    scale={"q_scale": lambda m: m.fp32(4)},
)
DENSE_ATTENTION = cases(dense_recompute(True), **DENSE_CHANGES)
DENSE_INDEXER = cases(dense_recompute(False), **DENSE_CHANGES)


def attention_backward(m, heads=64, depth=576, slots=64, tokens=2, keys=8, change=None, **keywords):
    arguments = {
        "q": m.bf16(tokens, heads, depth),
        "kv": m.bf16(keys, depth),
        "out": m.bf16(tokens, heads, 512),
        "dout": m.bf16(tokens, heads, 512),
        "lse": m.fp32(tokens, heads),
        "sink": m.fp32(heads),
        "ids": m.int32_zeros(tokens, slots),
    }
    made = {name: value(m) if callable(value) else value for name, value in keywords.items()}
    return changed(arguments, change), made


ATTENTION_BACKWARD = cases(
    attention_backward,
    plain={},
    lengths={"topk_length": lambda m: m.int32(1, 2)},
    wide_lengths={"topk_length": lambda m: m.int32(1, 2, 3)},
    long_lengths={"topk_length": lambda m: m.int32(1, 2).long()},
    **{f"heads_{heads}": {"heads": heads} for heads in (1, 16, 24, 32, 48, 96, 128, 192)},
    **{f"slots_{slots}": {"slots": slots} for slots in (0, 100, 128, 768)},
    **{f"depth_{depth}": {"depth": depth} for depth in (256, 512)},
    no_keys={"keys": 0},
    block={"block_tile": 128},
    half_q=half("q"),
    half_lse=half("lse"),
    half_sink=half("sink"),
    half_out=half("out"),
    long_ids={"change": {"ids": lambda t: t.long()}},
    flat_q={"change": {"q": lambda t: t[0]}},
    cut_kv=cut("kv"),
    cut_out=cut("out"),
    cut_lse=cut("lse"),
    cut_sink=cut("sink"),
    short_ids={"change": {"ids": lambda t: t[:1]}},
    deterministic={"deterministic": True},
    deterministic_48={"deterministic": True, "heads": 48},
    cluster={"q_cluster_mode": "pairs"},
    pairs_64={"q_cluster_mode": "adaptive_pair"},
)


def local_to_global(m, change=None, **keywords):
    ids = m.int32_zeros(1, 2, 3)
    made = {name: value(m) if callable(value) else value for name, value in keywords.items()}
    return [change(ids) if change else ids, 8], made


LOCAL_TO_GLOBAL = cases(
    local_to_global,
    plain={},
    long={"change": lambda t: t.long()},
    short={"change": lambda t: t.short()},
    flat={"change": lambda t: t[0]},
    strided={"change": lambda t: t[..., ::2]},
    one_prefix={"change": lambda t: t[0], "cu_seqlens_q": lambda m: m.int32(0, 2)},
)
COMPACTIFY = {
    "plain": lambda m: ([m.int32_zeros(2, 3)], {}),
    "cube": lambda m: ([m.int32_zeros(2, 3, 4)], {}),
    "long": lambda m: ([m.int32_zeros(2, 3).long()], {}),
    "flat": lambda m: ([m.int32_zeros(3)], {}),
}
TABLE = {
    "indexer_backward_wrapper": SPARSE_BACKWARD,
    "dense_indexer_backward_wrapper": DENSE_BACKWARD,
    "sparse_attn_score_recompute_wrapper": SPARSE_ATTENTION,
    "sparse_indexer_score_recompute_wrapper": SPARSE_INDEXER,
    "dense_attn_score_recompute_wrapper": DENSE_ATTENTION,
    "dense_indexer_score_recompute_wrapper": DENSE_INDEXER,
    "sparse_attention_backward_wrapper": ATTENTION_BACKWARD,
    "local_to_global_wrapper": LOCAL_TO_GLOBAL,
    "compactify_wrapper": COMPACTIFY,
}
REFUSED_BY_THE_COMPILER = [
    ("sparse_attn_score_recompute_wrapper", "heads_48", ValueError),
    ("sparse_attn_score_recompute_wrapper", "heads_96_512", ValueError),
    ("dense_attn_score_recompute_wrapper", "heads_48", ValueError),
    ("dense_indexer_score_recompute_wrapper", "heads_48", None),
]
"""SM100 calls that every check lets through; None is an error of the compiler's own type."""
CALLS = [
    (wrapper, name, arch)
    for wrapper, table in TABLE.items()
    for name in table
    for arch in sorted(CAPABILITY)
    if arch == "sm90" or (wrapper, name) not in [entry[:2] for entry in REFUSED_BY_THE_COMPILER]
]


@pytest.mark.filterwarnings("ignore:Migrated to examples:DeprecationWarning")
@pytest.mark.parametrize(("wrapper", "name", "error"), REFUSED_BY_THE_COMPILER)
def test_head_counts_that_the_compiler_refuses(real, wrapper, name, error):
    """The real kernels are compiled, for no device in particular, as far as they go."""
    with pretended_device("sm100", training=True, compiles=True), FakeTensorMode():
        found = outcome(getattr(real, wrapper), TABLE[wrapper][name], "cuda")
    assert found is error if error else found.__name__ == "MLIRError"
    model = getattr(without(VERSION, "sm100"), wrapper)
    arguments, keywords = TABLE[wrapper][name](Make("cpu"))
    with pytest.raises(error or CompileFailure):
        model(*arguments, **keywords)


@pytest.mark.parametrize(("wrapper", "name", "arch"), CALLS)
def test_training_wrappers_refuse_what_the_release_refuses(real, wrapper, name, arch):
    model = getattr(without(VERSION, arch, "single_row"), wrapper)
    assert_same(getattr(real, wrapper), model, TABLE[wrapper][name], arch, training=True)
