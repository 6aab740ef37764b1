"""Widths of sparse score recompute, and the slot arithmetic of the SM100 kernel."""

import pytest
import torch
from recompute_inputs import full_lengths, inputs, reference, run
from training_inputs import error, having, without

from harness.kernels import KernelHang, modelled_namespace
from harness.kernels.poison import is_poison
from harness.kernels.recompute_tiles import Tile, unfinished_blocks

every_kind = pytest.mark.parametrize("kind", ["attention", "indexer"])


# Widths


@pytest.mark.parametrize("slots", [100, 128, 200, 384])
@every_kind
@pytest.mark.parametrize(("version", "arch"), having("tail_slots", ("1.25.0", "1.26.0", "1.32.0")))
def test_sm90_never_computes_the_slots_behind_a_multiple_of_128(version, arch, kind, slots):
    tensors = inputs(rows=2, slots=slots, kind=kind)
    computed = slots // 128 * 128
    result = run(modelled_namespace(version, arch), kind, tensors)
    tail = result[..., computed:]
    assert bool((tail == 0).all() if version < "1.26.0" else is_poison(tail).all())
    expected = reference(kind, *tensors)
    if computed:
        assert error(result[..., :computed], expected[..., :computed]) < 1e-5
    out = torch.full(tuple(tensors[3].shape), 7.0)
    assert run(modelled_namespace(version, arch), kind, tensors, out=out) is out
    assert (out[..., computed:] == 7.0).all()
    assert error(run(without(version, arch, "tail_slots"), kind, tensors), expected) < 1e-5


@pytest.mark.parametrize("slots", [100, 192, 320])
@every_kind
def test_sm100_asserts_whole_blocks(kind, slots):
    tensors = inputs(rows=1, slots=slots, kind=kind)
    block = 64 if kind == "attention" else 128
    lengths = full_lengths(tensors[3])
    if slots % block:
        with pytest.raises(AssertionError, match=f"multiple of {block}"):
            run(modelled_namespace(), kind, tensors, lengths)
    else:
        assert (
            error(run(modelled_namespace(), kind, tensors, lengths), reference(kind, *tensors))
            < 1e-5
        )
    with pytest.raises(AssertionError, match="multiple of 128"):
        run(modelled_namespace(), kind, tensors)


# slot_arithmetic


@pytest.mark.parametrize(
    ("heads", "slots", "outcome"),
    [
        (64, 128, "right"),
        (64, 192, "hangs"),
        (64, 256, "right"),
        (64, 384, "hangs"),
        (64, 768, "garbage"),
        (64, 1024, "right"),
        (128, 384, "garbage"),
        (128, 256, "right"),
        (128, 192, "hangs"),
    ],
)
@pytest.mark.parametrize("version", ["1.26.0", "1.30.0"])
def test_slot_arithmetic_of_the_compact_kernel(version, heads, slots, outcome):
    tensors = inputs(rows=1, heads=heads, slots=slots, keys=slots, used=slots)
    lengths = full_lengths(tensors[3])
    namespace = modelled_namespace(version)
    expected = reference("attention", *tensors)
    if outcome == "hangs":
        with pytest.raises(KernelHang, match="never filled"):
            run(namespace, "attention", tensors, lengths)
    else:
        wrong = error(run(namespace, "attention", tensors, lengths), expected)
        assert wrong > 0.1 if outcome == "garbage" else wrong < 1e-5
    for healthy in (without(version, "sm100", "slot_arithmetic"), modelled_namespace("1.31.0")):
        assert error(run(healthy, "attention", tensors, lengths), expected) < 1e-5


def test_blocks_that_are_read_too_early():
    tile = Tile(block=64, split=0, compact=True)
    assert unfinished_blocks(tile, 64, 768).nonzero().flatten().tolist() == [4, 5, 6, 7]
    assert not unfinished_blocks(tile, 64, 1024).any()
    assert unfinished_blocks(tile, 128, 384).nonzero().flatten().tolist() == [2, 3]


def test_the_indexer_kernel_shares_the_slot_arithmetic():
    tensors = inputs(rows=1, slots=384, kind="indexer")
    with pytest.raises(KernelHang):
        run(modelled_namespace("1.30.0"), "indexer", tensors)
    assert (
        error(run(modelled_namespace("1.31.0"), "indexer", tensors), reference("indexer", *tensors))
        < 1e-5
    )
