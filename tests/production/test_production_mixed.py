"""What a machine with a GPU may lack, and what may stand in for it; the GPU is pretended."""

import pytest
import torch

from harness.kernels import modelled_flash_mla
from harness.kernels.detect import InstalledKernels, KernelFacts
from harness.production import backend, providers
from harness.production.backend import KernelSource, _device_flash_mla, kernel_source
from harness.production.errors import CapabilityMissingError
from harness.scenario.spec import KernelsSpec

CUDNN = KernelsSpec(dsa_kernel_backend="cudnn", source="hardware")
TILELANG = KernelsSpec(dsa_kernel_backend="tilelang")


@pytest.fixture
def gpu(monkeypatch):
    """A machine with an H200 and the frontend, but without FlashMLA."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    installed = InstalledKernels(cudnn_frontend="1.32.0", flash_mla=None)
    facts = KernelFacts(accepts_causal_offsets=True, mask_alignment="top_left")
    monkeypatch.setattr(backend, "installed_kernels", lambda: installed)
    monkeypatch.setattr(backend, "installed_facts", lambda: facts)
    return monkeypatch


def test_a_level_that_attends_needs_flash_mla(gpu):
    with pytest.raises(CapabilityMissingError, match=r"flash_mla.*--allow-mixed"):
        kernel_source(CUDNN)


def test_the_scorer_needs_none(gpu):
    source = kernel_source(CUDNN, attends=False)
    assert (source.modelled, source.flash_mla, source.arch) == (False, "absent", "sm90")
    assert source.kernels["flash_mla_sparse_fwd"] == "none"
    assert source.kernels["indexer_forward"] == "hardware"


def test_a_stand_in_is_named(gpu):
    source = kernel_source(CUDNN, allow_mixed=True)
    assert source.flash_mla == "modelled"
    assert source.kernels["flash_mla_sparse_fwd"].startswith("modelled FlashMLA")
    assert source.kernels["indexer_top_k"] == "hardware"


def test_a_stand_in_gives_what_the_model_gives():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 64, 576, generator=generator).bfloat16()
    kv = torch.randn(20, 1, 576, generator=generator).bfloat16()
    ids = torch.full((2, 1, 128), -1, dtype=torch.int32)
    ids[:, 0, :7] = torch.arange(7)
    source = KernelSource(modelled=False, kernels={}, arch="sm90", flash_mla="modelled")
    stand_in = _device_flash_mla(None, source)
    for got, want in zip(
        stand_in(q, kv, ids, 0.04), modelled_flash_mla("sm90")(q, kv, ids, 0.04), strict=True
    ):
        torch.testing.assert_close(got, want)


def test_tilelang_runs_where_it_imports(gpu):
    with pytest.raises(CapabilityMissingError, match="tilelang on a machine"):
        kernel_source(TILELANG)
    gpu.setattr(backend.importlib.util, "find_spec", lambda name: object())
    assert kernel_source(TILELANG).kernels["indexer"] == "hardware"


def test_without_a_gpu_tilelang_is_missing_one():
    if torch.cuda.is_available():
        pytest.skip("shows what a GPU changes")
    with pytest.raises(CapabilityMissingError, match="usable GPU with TileLang"):
        kernel_source(TILELANG)


def test_layers_beside_a_gpu_are_transformer_engine_or_named(monkeypatch):
    monkeypatch.setattr(providers.importlib.util, "find_spec", lambda name: None)
    assert providers.spec_provider(may_be_local=False)[1] == "local"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert providers.spec_provider()[1] == "local"
    with pytest.raises(CapabilityMissingError, match=r"transformer_engine.*--allow-mixed"):
        providers.spec_provider(may_be_local=False)
