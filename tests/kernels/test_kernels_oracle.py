"""The installed release's own checks, run without a GPU, beside the model's refusals.

The real wrappers run on fake CUDA tensors up to the point where they would compile a kernel; what
they raise before that is the oracle. Only the exception type is compared.
"""

from __future__ import annotations

import importlib

import pytest
from kernel_oracle import CAPABILITY, VERSION, assert_same, outcome, pretended_device
from torch._subclasses.fake_tensor import FakeTensorMode

from harness.kernels import RELEASES, modelled_namespace
from harness.kernels.detect import installed_facts

pytestmark = [
    pytest.mark.skipif(
        VERSION != "1.32.0",
        reason="needs nvidia-cudnn-frontend 1.32.0, whose internals the patches name",
    ),
    pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor"),
]
_FORWARD = "cudnn.deepseek_sparse_attention.indexer_forward"


@pytest.fixture(scope="module")
def real():
    facts = installed_facts()
    if facts.reason is not None:
        pytest.skip(f"needs the CuTe DSL to import the wrappers: {facts.reason}")
    from cudnn import DSA

    # Touch the modules that the patches name.
    _ = DSA.indexer_forward_top_k_wrapper, DSA.IndexerTopK
    importlib.import_module(f"{_FORWARD}._compressed_top_k_sm100")
    return DSA


SCORING = {
    "plain": lambda m: (m.bshd(), {"ratio": 1}),
    "thd": lambda m: (m.thd(), {"ratio": 1, **m.cu()}),
    "half_q": lambda m: ((m.bshd()[0].half(), *m.bshd()[1:]), {"ratio": 1}),
    "fp32_k": lambda m: ((m.bshd()[0], m.bshd()[1].float(), m.bshd()[2]), {"ratio": 1}),
    "fp32_w": lambda m: ((*m.bshd()[:2], m.fp32(1, 4, 32)), {"ratio": 1}),
    "fp32_w_strided": lambda m: ((*m.bshd()[:2], m.fp32(1, 4, 64)[..., ::2]), {"ratio": 1}),
    "half_w": lambda m: ((*m.bshd()[:2], m.bshd()[2].half()), {"ratio": 1}),
    **{
        f"heads_{heads}": lambda m, heads=heads: (m.bshd(heads=heads), {"ratio": 1})
        for heads in (4, 8, 16, 24, 48, 64, 96, 128)
    },
    "two_key_heads": lambda m: (
        (m.bf16(1, 4, 64, 128), m.bf16(1, 4, 2, 128), m.bf16(1, 4, 64)),
        {"ratio": 1},
    ),
    "wrong_qhead": lambda m: (m.bshd(), {"ratio": 1, "qhead_per_kv_head": 64}),
    "ratio_0": lambda m: (m.bshd(), {"ratio": 0}),
    "covered": lambda m: (m.bshd(rows=11, keys=2), {"ratio": 4}),
    "not_covered": lambda m: (m.bshd(rows=12, keys=2), {"ratio": 4}),
    "offsets": lambda m: (m.bshd(), {"ratio": 1, "q_causal_offsets": m.int32(3)}),
    "offsets_shape": lambda m: (m.bshd(), {"ratio": 1, "q_causal_offsets": m.int32(3, 4)}),
    "offsets_dtype": lambda m: (
        m.bshd(),
        {"ratio": 1, "q_causal_offsets": m.int32(3).long()},
    ),
    "one_prefix": lambda m: (m.thd(), {**m.cu(), "ratio": 1, "cu_seqlens_k": None}),
    "long_prefix": lambda m: (
        m.thd(),
        {**m.cu(), "ratio": 1, "cu_seqlens_q": m.int32(0, 4).long()},
    ),
    "uneven_prefix": lambda m: (
        m.thd(),
        {**m.cu(), "ratio": 1, "cu_seqlens_q": m.int32(0, 2, 4)},
    ),
    "q_stage": lambda m: (m.bshd(), {"ratio": 1, "q_stage": 3}),
    "scale_with_bf16": lambda m: (m.bshd(), {"ratio": 1, "q_scale": m.fp32(4)}),
}
FORWARD = {
    **SCORING,
    "no_max_q": lambda m: (m.thd(), {**m.cu(), "ratio": 1, "max_seqlen_q": None}),
    "no_max_k": lambda m: (m.thd(), {**m.cu(), "ratio": 1, "max_seqlen_k": None}),
    "thd_not_covered": lambda m: (m.thd(), {**m.cu(), "ratio": 1, "max_seqlen_q": 9}),
    "tuning": lambda m: (m.bshd(), {"ratio": 1, "n_block_size": 64}),
    "lse": lambda m: (m.bshd(), {"ratio": 1, "return_lse": True}),
    "out": lambda m: (m.bshd(), {"ratio": 1, "out": m.fp32(1, 4, 4)}),
    "out_shape": lambda m: (m.bshd(), {"ratio": 1, "out": m.fp32(1, 4, 5)}),
    "out_dtype": lambda m: (m.bshd(), {"ratio": 1, "out": m.bf16(1, 4, 4)}),
}
FUSED = {
    **{
        name: lambda m, case=case: ((*case(m)[0], 2), case(m)[1])
        for name, case in SCORING.items()
        # These size the buffer from tensor values, which fake tensors do not have.
        if name not in ("offsets", "thd")
    },
    "offsets_buffer": lambda m: (
        (*m.bshd(), 2),
        {"ratio": 1, "q_causal_offsets": m.int32(3), "cand_buffer": m.fp32(99)},
    ),
    "thd_buffer": lambda m: (
        (*m.thd(), 2),
        {
            **m.cu(),
            "ratio": 1,
            "cand_buffer": m.fp32(10),
            "cand_batch_offsets": m.int32(0, 10).long(),
        },
    ),
    "top_k_0": lambda m: ((*m.bshd(), 0), {"ratio": 1}),
    "top_k_2049": lambda m: ((*m.bshd(), 2049), {"ratio": 1}),
    "kv_stage": lambda m: ((*m.bshd(), 2), {"ratio": 1, "kv_stage": 2}),
    "lse": lambda m: ((*m.bshd(), 2), {"ratio": 1, "return_lse": True}),
    "window_lse": lambda m: (
        (*m.bshd(), 2),
        {"ratio": 1, "return_lse": True, "microbatch_rows": 2},
    ),
    "window_offsets": lambda m: (
        (*m.bshd(), 2),
        {"ratio": 1, "q_causal_offsets": m.int32(0), "microbatch_rows": 2},
    ),
    "window_ratio": lambda m: ((*m.bshd(), 2), {"ratio": 2, "microbatch_rows": 3}),
    "small_buffer": lambda m: ((*m.bshd(), 2), {"ratio": 1, "cand_buffer": m.fp32(9)}),
    "buffer": lambda m: ((*m.bshd(), 2), {"ratio": 1, "cand_buffer": m.fp32(10)}),
    "strided_buffer": lambda m: ((*m.bshd(), 2), {"ratio": 1, "cand_buffer": m.fp32(40)[::2]}),
    "bshd_slabs": lambda m: (
        (*m.bshd(), 2),
        {"ratio": 1, "cand_batch_offsets": m.int32(0, 10).long()},
    ),
    "thd_not_covered": lambda m: ((*m.thd(), 2), {**m.cu(), "ratio": 1, "max_seqlen_q": 9}),
    "out_indices_dtype": lambda m: (
        (*m.bshd(), 2),
        {"ratio": 1, "out_indices": m.fp32(1, 4, 2)},
    ),
    "lse_out_shape": lambda m: ((*m.bshd(), 2), {"ratio": 1, "lse_out": m.fp32(1, 5)}),
}
TOP_K = {
    "plain": lambda m: ((m.fp32(4, 16), m.int32(1, 2, 3, 4), 4), {}),
    "bf16": lambda m: ((m.bf16(4, 16), m.int32(1, 2, 3, 4), 4), {}),
    "double": lambda m: ((m.fp32(4, 16).double(), m.int32(1, 2, 3, 4), 4), {}),
    "long_lens": lambda m: ((m.fp32(4, 16), m.int32(1, 2, 3, 4).long(), 4), {}),
    "3d": lambda m: ((m.fp32(4, 16, 1), m.int32(1, 2, 3, 4), 4), {}),
    "2d_lens": lambda m: ((m.fp32(4, 16), m.int32(1, 2, 3, 4).view(2, 2), 4), {}),
    "top_k_0": lambda m: ((m.fp32(4, 16), m.int32(1, 2, 3, 4), 0), {}),
    "top_k_2048": lambda m: ((m.fp32(4, 16), m.int32(1, 2, 3, 4), 2048), {}),
    "top_k_2049": lambda m: ((m.fp32(4, 16), m.int32(1, 2, 3, 4), 2049), {}),
    "odd_705": lambda m: ((m.fp32(4, 999), m.int32(1, 2, 3, 4), 705), {}),
    "next_n": lambda m: ((m.fp32(4, 16), m.int32(1, 2), 4), {"next_n": 2}),
    "next_n_0": lambda m: ((m.fp32(4, 16), m.int32(1, 2), 4), {"next_n": 0}),
    "uneven": lambda m: ((m.fp32(4, 16), m.int32(1, 2, 3), 4), {}),
    "no_rows": lambda m: ((m.fp32(0, 16), m.int32(), 4), {}),
    "no_columns": lambda m: ((m.fp32(4, 0), m.int32(1, 2, 3, 4), 4), {}),
    "strided": lambda m: ((m.fp32(4, 32)[:, ::2], m.int32(1, 2, 3, 4), 4), {}),
    "tie_break": lambda m: ((m.fp32(4, 16), m.int32(1, 2, 3, 4), 4), {"tie_break": 2}),
    "tie_break_3": lambda m: ((m.fp32(4, 16), m.int32(1, 2, 3, 4), 4), {"tie_break": 3}),
}


@pytest.mark.parametrize("arch", sorted(CAPABILITY))
@pytest.mark.parametrize("name", FORWARD)
def test_forward_refuses_what_the_release_refuses(real, name, arch):
    model = modelled_namespace(VERSION, arch).indexer_forward_wrapper
    assert_same(real.indexer_forward_wrapper, model, FORWARD[name], arch)


@pytest.mark.parametrize("arch", sorted(CAPABILITY))
@pytest.mark.parametrize("name", FUSED)
def test_fused_top_k_refuses_what_the_release_refuses(real, name, arch):
    model = modelled_namespace(VERSION, arch).indexer_forward_top_k_wrapper
    assert_same(real.indexer_forward_top_k_wrapper, model, FUSED[name], arch)


@pytest.mark.parametrize("arch", sorted(CAPABILITY))
@pytest.mark.parametrize("name", TOP_K)
def test_top_k_refuses_what_the_release_refuses(real, name, arch):
    """The class's check, behind the wrapper's own staging of strided inputs."""

    def checked(values, seq_lens, top_k, **keywords):
        plan = real.IndexerTopK(values.contiguous(), seq_lens.contiguous(), top_k, **keywords)
        assert plan.check_support()

    model = modelled_namespace(VERSION, arch).indexer_top_k_wrapper
    assert_same(checked, model, TOP_K[name], arch)


def test_the_oracle_tells_acceptance_from_refusal(real):
    with pretended_device("sm100"), FakeTensorMode(allow_non_fake_inputs=True):
        assert outcome(real.indexer_forward_wrapper, FORWARD["plain"], "cuda") is None
        assert outcome(real.indexer_forward_wrapper, FORWARD["heads_24"], "cuda") is ValueError
    assert VERSION in RELEASES
