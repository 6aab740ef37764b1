"""Poisoned margins: planted overruns on both sides, and tensors that are used as they should be."""

import pytest
import torch

from harness.kernels.addresses import AddressFault
from harness.runtime.blame import exception_evidence
from harness.runtime.margins import MARGIN_BYTES, GuardedTensor

DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int32, torch.int64, torch.bool)


def _past(guard, num_elements):
    """A view that reaches beyond the tensor, as a kernel with a wrong bound would."""
    size = guard.tensor.numel() + num_elements
    return guard.tensor.as_strided((size,), (1,), guard.tensor.storage_offset())


@pytest.mark.parametrize("dtype", DTYPES)
def test_use_inside_the_tensor_is_no_damage(dtype):
    guard = GuardedTensor("out", (3, 5), dtype)
    assert guard.tensor.shape == (3, 5) and guard.tensor.dtype is dtype
    assert guard.tensor.is_contiguous() and guard.tensor.data_ptr() % 64 == 0
    guard.tensor.zero_()
    assert guard.damage() == ()
    guard.check("kernel")


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_element_past_the_end_is_found(dtype):
    guard = GuardedTensor("topk_indices", (3, 5), dtype)
    _past(guard, 1)[-1] = 0
    with pytest.raises(AddressFault) as found:
        guard.check("indexer_top_k")
    fault = found.value.evidence
    assert (fault.kernel, fault.operand) == ("indexer_top_k", "topk_indices")
    assert (fault.element_offset, fault.row, fault.index) == (15, 3, 0)
    assert (fault.allowed, fault.klass) == ((0, 15), "past_tensor")
    assert exception_evidence(found.value).address_fault == fault


def test_an_element_before_the_start_is_found():
    guard = GuardedTensor("out", (4,), torch.float32)
    start = guard.tensor.storage_offset()
    guard.tensor.as_strided((1,), (1,), start - 2).zero_()
    (damage,) = guard.damage()
    assert (damage.side, damage.first, damage.num_bytes) == ("before", -8, 4)
    with pytest.raises(AddressFault, match="element -2, allowed"):
        guard.check("kernel")


def test_damage_on_both_sides_is_told_apart_and_counted():
    guard = GuardedTensor("out", (4,), torch.int32)
    _past(guard, 3)[-2:] = 7
    guard.tensor.as_strided((1,), (1,), guard.tensor.storage_offset() - 1).zero_()
    assert [(d.side, d.first, d.num_bytes) for d in guard.damage()] == [
        ("before", -4, 4),
        ("after", 20, 8),
    ]


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d.is_floating_point])
def test_a_read_past_the_end_gives_nan(dtype):
    guard = GuardedTensor.copy_of("keys", torch.ones(8, dtype=dtype))
    assert torch.equal(guard.tensor.float(), torch.ones(8))
    assert _past(guard, 1).float().sum().isnan()
    assert not _past(guard, 0).float().sum().isnan()
    assert guard.damage() == ()


def test_an_index_read_past_the_end_is_no_index():
    guard = GuardedTensor.copy_of("indices", torch.zeros(8, dtype=torch.int32))
    assert _past(guard, 1)[-1] < -1


def test_a_copy_of_a_view_is_contiguous():
    source = torch.arange(12).view(3, 4).t()
    guard = GuardedTensor.copy_of("keys", source)
    assert torch.equal(guard.tensor, source) and guard.tensor.is_contiguous()


def test_empty_tensors_and_scalars_have_margins_too():
    empty = GuardedTensor("none", (0, 4), torch.float32)
    assert empty.damage() == ()
    _past(empty, 1).zero_()
    with pytest.raises(AddressFault):
        empty.check("kernel")
    scalar = GuardedTensor("one", (), torch.float32)
    scalar.tensor.zero_()
    assert scalar.damage() == ()


def test_a_write_beyond_the_margin_is_not_seen():
    guard = GuardedTensor("out", (64,), torch.uint8, margin_bytes=256)
    inside = guard.tensor.as_strided((256,), (1,), guard.tensor.storage_offset() + 64)
    inside[-1] = 0
    assert [d.first for d in guard.damage()] == [64 + 255]
    assert MARGIN_BYTES > 256


@pytest.mark.parametrize("margin", [0, -256, 100])
def test_margins_that_would_misalign_are_refused(margin):
    with pytest.raises(ValueError, match=f"expected a multiple of 256, found {margin}"):
        GuardedTensor("out", (4,), torch.float32, margin_bytes=margin)
