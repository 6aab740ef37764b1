"""Publicly reported failures of the training wrappers, called as Megatron-LM's fused path calls.

That caller passes local ids plus b * keys to indexer backward without saying that they are global,
pads top-k widths with id 0 of zero target and prediction, and hands attention backward ids clamped
to 0 with lengths. Sources: https://github.com/NVIDIA/Megatron-LM (dsa_cudnn_kernels.py) and the
cudnn-frontend issues named at each test.
"""

import pytest
import torch
from kernel_inputs import int32
from training_inputs import (
    BF16,
    assert_attention,
    attention_case,
    attention_reference,
    error,
    globalised,
    indexer_case,
    pairs,
    run_attention_backward,
    run_indexer_backward,
    without,
)

from harness.kernels import ARCHES, KernelHang, modelled_namespace

AMONG = ("1.25.0", "1.26.0", "1.28.0", "1.29.0", "1.32.0")
PAIRS = pairs(*AMONG)
every_release = pytest.mark.parametrize(("version", "arch"), PAIRS)
GRADIENTS = ("d_index_q", "d_weights", "d_index_k")


def as_the_caller_does(case, slots):
    """Ids shifted by batch, empty ones 0; predictions kept above the clipped probability."""
    ids = globalised(case.ids, case.k.shape[1]).masked_fill(case.ids < 0, 0)
    tiny = torch.finfo(torch.float32).tiny
    used = case.ids >= 0
    case.predict = torch.where(used, case.predict.clamp(min=tiny), 0.0)
    assert ids.shape[-1] == slots
    return ids


@pytest.mark.parametrize("batches", [1, 2])
@every_release
def test_the_second_micro_batch_trains_nothing_from_1_26_on(version, arch, batches):
    """Ids are global and taken for local: past the keys, or past all batches once shifted again."""
    case = indexer_case(batch=batches)
    ids = as_the_caller_does(case, 128)
    result = run_indexer_backward(modelled_namespace(version, arch), case, ids=ids)
    for name, expected in zip(GRADIENTS, (case.d_q, case.d_w, case.d_k), strict=True):
        assert error(result[name][0], expected[0]) < BF16
        if batches == 1:
            continue
        if version < "1.26.0":
            assert error(result[name][1], expected[1]) < BF16
        else:
            assert (result[name][1] == 0).all()


@pytest.mark.parametrize("version", ["1.26.0", "1.28.0"])
def test_with_four_micro_batches_the_second_one_trains_on_the_third_ones_keys(version):
    """https://github.com/NVIDIA/cudnn-frontend/issues/550 ."""
    case = indexer_case(batch=4, rows=2)
    ids = as_the_caller_does(case, 128)
    namespace = modelled_namespace(version)
    result = run_indexer_backward(namespace, case, ids=ids)
    assert error(result["d_index_q"][1], case.d_q[1]) > 0.5
    assert (result["d_index_q"][1] != 0).any()
    assert (result["d_index_k"][1] == 0).all()
    assert (result["d_index_k"][2] != 0).any()
    assert {f.klass for f in namespace.findings} == {"wrong_row"}
    for healthy in (without(version, "sm100", "d550"), modelled_namespace("1.29.0")):
        fixed = run_indexer_backward(healthy, case, ids=ids)
        assert (fixed["d_index_q"][1:] == 0).all()
        assert (fixed["d_index_k"][1:] == 0).all()


@pytest.mark.parametrize("width", [20, 100, 130])
@every_release
def test_a_padded_width_changes_nothing(version, arch, width):
    """The caller pads the effective top-k to a multiple of 128 with id 0 and zero weight."""
    slots = -(-width // 128) * 128
    case = indexer_case(batch=1, rows=2, keys=140, used=width, slots=slots)
    ids = as_the_caller_does(case, slots)
    result = run_indexer_backward(modelled_namespace(version, arch), case, ids=ids)
    for name, expected in zip(GRADIENTS, (case.d_q, case.d_w, case.d_k), strict=True):
        assert error(result[name], expected) < BF16


@every_release
def test_invalid_slots_may_be_passed_as_minus_one(version, arch):
    """Backward has no lengths: an empty slot is an id that is no key, or one of zero weight."""
    case = indexer_case(batch=1)
    result = run_indexer_backward(modelled_namespace(version, arch), case, ids=case.ids)
    for name, expected in zip(GRADIENTS, (case.d_q, case.d_w, case.d_k), strict=True):
        assert error(result[name], expected) < BF16


def padded_attention(lengths, keys=80):
    """Ids clamped to 0 behind the length, as the caller hands them to backward."""
    case = attention_case(tokens=len(lengths), keys=keys, lengths=lengths)
    behind = torch.arange(64) >= case.lengths.unsqueeze(1)
    case.ids = case.ids.masked_fill(behind, 0).contiguous()
    return case


@every_release
def test_ids_clamped_to_zero_behind_the_length_are_right_everywhere(version, arch):
    case = padded_attention([20, 64, 1])
    namespace = modelled_namespace(version, arch)
    assert_attention(run_attention_backward(namespace, case), case)
    assert namespace.findings == []


@every_release
def test_a_row_without_keys(version, arch):
    """https://github.com/NVIDIA/cudnn-frontend/issues/433 : hangs, or is nothing."""
    case = padded_attention([20, 64, 1])
    case.lse[2], case.out[2] = float("inf"), 0
    lengths = int32(20, 64, 0)
    namespace = modelled_namespace(version, arch)
    if {"d433", "d785"} & namespace.defects:
        with pytest.raises(KernelHang, match="topk_length 0"):
            run_attention_backward(namespace, case, lengths=lengths)
    else:
        result = run_attention_backward(namespace, case, lengths=lengths)
        assert (result["dq"][2] == 0).all()
        assert error(result["dq"][:2], case.d_q[:2]) < BF16


@every_release
def test_the_callers_dummy_row_keeps_empty_rows_out(version, arch):
    """Rows without keys are left out and one zero row with one slot is appended."""
    case = padded_attention([20, 64, 1])
    for name in ("q", "out", "dout", "lse"):
        getattr(case, name)[2] = 0
    attention_reference_out = case.out
    attention_reference(case)
    case.out = attention_reference_out
    case.lse[2] = 0
    result = run_attention_backward(modelled_namespace(version, arch), case)
    assert (result["dq"][2] == 0).all()
    assert error(result["dkv"], case.d_kv) < BF16


@every_release
def test_a_table_wider_than_the_keys_loses_dkv_alone(version, arch):
    """https://github.com/NVIDIA/cudnn-frontend/pull/298 : 64 slots over 40 keys."""
    case = attention_case(tokens=2, keys=40, slots=40, lengths=[64, 64])
    case.ids = torch.cat([torch.zeros(2, 24, dtype=torch.int32), case.ids], 1).contiguous()
    attention_reference(case)
    namespace = modelled_namespace(version, arch)
    result = run_attention_backward(namespace, case)
    assert error(result["dq"], case.d_q) < BF16
    assert (error(result["dkv"], case.d_kv) < BF16) != ("d298" in namespace.defects)


@pytest.mark.parametrize("heads", [24, 48])
@pytest.mark.parametrize("version", ["1.24.0", "1.26.0", "1.27.0", "1.32.0"])
def test_heads_that_are_padded_to_64_are_right_on_sm90(version, heads):
    """https://github.com/NVIDIA/cudnn-frontend/issues/384 : the caller's padding hides it."""
    case = attention_case(tokens=2, heads=heads, lengths=[64, 30])

    def widened(tensor):
        shape = (tensor.shape[0], 64, *tensor.shape[2:])
        return torch.cat([tensor, tensor.new_zeros(shape)], 1)[:, :64].contiguous()

    namespace = modelled_namespace(version, "sm90")
    result = namespace.sparse_attention_backward_wrapper(
        widened(case.q),
        case.kv,
        widened(case.out),
        widened(case.dout),
        widened(case.lse),
        torch.cat([case.sink, torch.full((64 - heads,), -float("inf"))]),
        case.ids,
        softmax_scale=case.scale,
        topk_length=case.lengths,
    )
    assert error(result["dq"][:, :heads], case.d_q) < BF16
    assert (result["dq"][:, heads:] == 0).all()
    assert error(result["dkv"], case.d_kv) < BF16


@pytest.mark.parametrize("arch", ARCHES)
def test_without_defects_every_release_computes_the_same(arch):
    case = attention_case(lengths=[64, 0, 30, 1])
    case.out[1], case.lse[1] = 0, float("inf")
    case.ids[0, 5], case.ids[2, 2] = -1, 80
    results = [
        run_attention_backward(modelled_namespace(version, arch, defects="none"), case)
        for version in ("1.24.0", "1.27.0", "1.32.0")
    ]
    for result in results[:2]:
        assert error(result["dq"], results[2]["dq"]) < BF16
        assert torch.equal(result["d_sink"], results[2]["d_sink"])
