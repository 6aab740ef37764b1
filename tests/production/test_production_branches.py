"""Megatron's CUDA branches run with modelled kernels; each is held by a test that can fail.

The planted twin of every case is the same call on plain CPU tensors, which takes the other branch.
"""

from __future__ import annotations

import importlib

import pytest
import torch

from harness.kernels import cuda_like
from harness.production import preload  # noqa: F401 (imports Megatron, warnings silenced)
from harness.production.backend import PRODUCTION_BRANCHES, kernel_source, kernels_installed
from harness.production.recorder import Recorder
from harness.scenario.spec import KernelsSpec, ModelledKernels

CALLER = importlib.import_module(
    "megatron.core.transformer.experimental_attention_variant.dsa_cudnn_kernels"
)
SPEC = KernelsSpec(
    dsa_kernel_backend="cudnn",
    source="modelled",
    modelled=ModelledKernels(cudnn_frontend="1.25.0", arch="sm100"),
)


@pytest.fixture
def recorder():
    recorder = Recorder()
    with kernels_installed(SPEC, kernel_source(SPEC), recorder, seed=0):
        yield recorder


def scores_ranked(recorder: Recorder, wrap) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores as the kernel formed them and as top-k was given them."""
    seen = {}
    recorder.reducers["indexer_forward"] = lambda call: seen.update(
        formed=torch.Tensor(call.result["scores"]).clone()
    )
    recorder.reducers["indexer_top_k"] = lambda call: seen.update(
        ranked=next(v for v in call.arguments.values() if isinstance(v, torch.Tensor)).clone()
    )
    generator = torch.Generator().manual_seed(0)
    q = wrap(torch.randn(1, 32, 32, 128, generator=generator).bfloat16())
    k = wrap(torch.randn(1, 32, 128, generator=generator).bfloat16())
    w = wrap(torch.zeros(1, 32, 32).bfloat16())
    CALLER._indexer_topk_bshd(q, k, w, 8, return_scores=False)
    return seen["formed"].flatten(), seen["ranked"].as_subclass(torch.Tensor).flatten()


def test_no_tie_break_bias_is_added_before_top_k(recorder):
    formed, ranked = scores_ranked(recorder, cuda_like)
    assert torch.equal(formed, ranked)


def test_planted_plain_tensors_get_the_bias(recorder):
    formed, ranked = scores_ranked(recorder, lambda tensor: tensor)
    assert not torch.equal(formed, ranked)


def test_unsupported_head_counts_are_asked_of_the_device(recorder):
    query = torch.zeros(4, 1, 48, 576)
    assert CALLER._flash_mla_supports_head_count(cuda_like(query)) is False
    assert CALLER._flash_mla_supports_head_count(cuda_like(query[:, :, :16])) is True


def test_planted_plain_tensors_skip_the_head_check(recorder):
    assert CALLER._flash_mla_supports_head_count(torch.zeros(4, 1, 48, 576)) is True


def test_the_list_of_branches_names_real_functions():
    assert PRODUCTION_BRANCHES
    for name in PRODUCTION_BRANCHES:
        assert callable(getattr(CALLER, name))
