import pytest
import torch

from harness.kernels.ranking import (
    MINUS_INF_BUCKET,
    bit_order,
    coarse_bucket,
    fine_key,
    minus_inf_bucket_key,
    top_k_order,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def every_half_value(dtype):
    """All 65536 bit patterns of a half type, best first by bits."""
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    values = bits.view(dtype)
    return values[bit_order(values).argsort(descending=True)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_order_of_all_half_values_agrees_with_comparison(dtype):
    values = every_half_value(dtype)
    numbers = values[~values.isnan()].double()
    assert (numbers[:-1] >= numbers[1:]).all()
    buckets = coarse_bucket(values)
    assert (buckets[:-1] <= buckets[1:]).all(), "buckets never contradict the bits"
    keys = fine_key(values)
    assert (keys[:-1] < keys[1:]).all()
    assert torch.equal(keys >> 8, buckets.long())


@pytest.mark.parametrize("dtype", DTYPES)
def test_minus_inf_bucket_starts_where_its_key_says(dtype):
    if dtype == torch.float32:
        start = torch.tensor([-65520.0])
        values = torch.cat([torch.nextafter(start, torch.zeros(1)), start, start * 2])
    else:
        values = every_half_value(dtype)
        values = values[~values.isnan()]
    inside = coarse_bucket(values) == MINUS_INF_BUCKET[dtype]
    assert inside.any()
    assert not inside.all()
    assert torch.equal(inside, bit_order(values) <= minus_inf_bucket_key(dtype))


def test_fp32_order_is_bucket_first_then_bits():
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (20000,), generator=generator, dtype=torch.int64)
    values = bits.to(torch.int32).view(torch.float32)
    values = torch.cat([values, torch.tensor([0.0, -0.0, float("inf"), -float("inf")])])
    composite = coarse_bucket(values).long() * 2**32 + fine_key(values)
    by_passes = composite.argsort(stable=True)
    by_order = (-top_k_order(values).long()).argsort(stable=True)
    assert torch.equal(by_passes, by_order)
