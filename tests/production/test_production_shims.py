"""Host shims are named, do what they say, are put back, and are refused where there is a GPU."""

from __future__ import annotations

import pytest
import torch

from harness.production.shims import HOST_SHIMS, ShimRefusedError, host_shims

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


def test_refused_with_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ShimRefusedError, match="CUDA_VISIBLE_DEVICES="), host_shims():
        pass
