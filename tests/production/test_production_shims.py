"""Host shims are named, do what they say, are put back, and are refused where there is a GPU."""

from __future__ import annotations

import importlib

import pytest
import torch

from harness.production.shims import (
    DYNAMIC_CP_SHIMS,
    HOST_SHIMS,
    RECOMPUTE_SHIMS,
    ShimRefusedError,
    host_shims,
)

needs_no_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="host shims are refused with a usable GPU"
)


@needs_no_gpu
def test_shims_stand_in_for_cuda_and_are_put_back():
    before = (torch.cuda.current_device, torch.cuda.nvtx.range, torch.tensor, torch.Tensor.cuda)
    with host_shims() as names:
        assert names == tuple(HOST_SHIMS)
        assert torch.cuda.current_device() == "cpu"
        with torch.cuda.nvtx.range("anything"):
            pass
        tensor = torch.tensor([1], device="cpu", pin_memory=True)
        assert tensor.cuda(non_blocking=True) is tensor
    after = (torch.cuda.current_device, torch.cuda.nvtx.range, torch.tensor, torch.Tensor.cuda)
    assert after == before


@needs_no_gpu
def test_further_shims_are_installed_where_they_are_asked_for_alone():
    random = importlib.import_module("megatron.core.tensor_parallel.random")

    def looked_at() -> tuple[object, ...]:
        return (
            torch.cuda.random.get_rng_state,
            random._set_cuda_rng_state,
            torch.distributed.barrier,
            torch.cuda.synchronize,
        )

    before, queued = looked_at(), len(torch.cuda._queued_calls)
    with host_shims():
        assert looked_at() == before
    with host_shims(RECOMPUTE_SHIMS, DYNAMIC_CP_SHIMS) as names:
        assert names == (*HOST_SHIMS, *RECOMPUTE_SHIMS, *DYNAMIC_CP_SHIMS)
        random._set_cuda_rng_state(random._get_cuda_rng_state())
        torch.cuda.synchronize()
    assert looked_at() == before
    # What waits for CUDA to be set up would wait for ever, and be kept.
    assert len(torch.cuda._queued_calls) == queued


def test_refused_with_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ShimRefusedError, match="CUDA_VISIBLE_DEVICES="), host_shims():
        pass
