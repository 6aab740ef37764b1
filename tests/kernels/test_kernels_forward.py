import pytest
import torch
from kernel_inputs import (
    BOTTOM_RIGHT,
    FORWARD_PAIRS,
    TOP_LEFT,
    assert_scores,
    bshd,
    exact,
    healthy,
    int32,
    prefix,
    thd,
    visible,
)

from harness.kernels import NotModelledError, cuda_like, modelled_namespace


def scores_of(namespace, tensors, **keywords):
    return namespace.indexer_forward_wrapper(*tensors, **{"ratio": 1, **keywords})["scores"]


@pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)
def test_square_call_is_plain_causal(version, arch):
    tensors = bshd(2, 37, 37)
    scores = scores_of(healthy(version, arch), tensors, sm_scale=0.5)
    assert scores.shape == (2, 37, 37)
    assert scores.dtype == torch.float32
    for batch in range(2):
        expected = 0.5 * exact(tensors[0][batch], tensors[1][batch, :, 0], tensors[2][batch])
        assert_scores(scores[batch], expected, visible(list(range(1, 38)), 37))


@pytest.mark.parametrize("ratio", [1, 2, 4])
@pytest.mark.parametrize(("version", "arch"), BOTTOM_RIGHT)
def test_bottom_right_releases_let_the_last_row_see_every_key(version, arch, ratio):
    q, k, w = bshd(1, 6, 40)
    scores = scores_of(healthy(version, arch), (q, k, w), ratio=ratio)[0]
    limits = [(40 * ratio - 6 + row + 1) // ratio for row in range(6)]
    assert limits[-1] == 40
    assert_scores(scores, exact(q[0], k[0, :, 0], w[0]), visible(limits, 40))


@pytest.mark.parametrize("ratio", [1, 2, 4])
@pytest.mark.parametrize("offset", [None, 0, 34, 200, -4])
@pytest.mark.parametrize(("version", "arch"), TOP_LEFT)
def test_top_left_releases_count_from_the_offset(version, arch, ratio, offset):
    q, k, w = bshd(1, 6, 40)
    given = None if offset is None else int32(offset)
    scores = scores_of(healthy(version, arch), (q, k, w), ratio=ratio, q_causal_offsets=given)[0]
    limits = [min(max(((offset or 0) + row + 1) // ratio, 0), 40) for row in range(6)]
    assert_scores(scores, exact(q[0], k[0, :, 0], w[0]), visible(limits, 40))


@pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)
def test_thd_columns_are_segment_local_and_empty_segments_are_skipped(version, arch):
    q, k, w = thd(10, 12)
    cu_q, cu_k = prefix([3, 0, 5, 0]), prefix([5, 0, 7, 0])
    keywords = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": 5, "max_seqlen_k": 7}
    scores = scores_of(healthy(version, arch), (q, k, w), **keywords)
    assert scores.shape == (10, 7)
    first = [3, 4, 5] if version < "1.26" else [1, 2, 3]
    second = [3, 4, 5, 6, 7] if version < "1.26" else [1, 2, 3, 4, 5]
    assert_scores(scores[:3, :5], exact(q[:3], k[:5, 0], w[:3]), visible(first, 5))
    assert_scores(scores[3:8], exact(q[3:8], k[5:, 0], w[3:8]), visible(second, 7))
    assert scores[:3, 5:].isneginf().all()
    assert scores[8:].isneginf().all(), "rows outside the prefix sums stay -inf"


@pytest.mark.parametrize(("version", "arch"), TOP_LEFT)
def test_thd_takes_one_offset_per_segment(version, arch):
    q, k, w = thd(4, 12)
    scores = scores_of(
        healthy(version, arch),
        (q, k, w),
        cu_seqlens_q=prefix([2, 2]),
        cu_seqlens_k=prefix([6, 6]),
        max_seqlen_q=2,
        max_seqlen_k=6,
        q_causal_offsets=int32(4, 1),
    )
    assert torch.isfinite(scores).sum(1).tolist() == [5, 6, 2, 3]


@pytest.mark.parametrize("keys", [8, 9, 10, 11])
@pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)
def test_layout_of_the_result(version, arch, keys):
    scores = scores_of(healthy(version, arch), bshd(2, 4, keys))
    padded = arch == "sm100" and version < "1.27" and keys % 4 != 0
    assert scores.is_contiguous() != padded
    assert scores.stride(1) == (12 if padded else keys)


def test_padding_columns_of_a_view_are_minus_inf():
    scores = scores_of(healthy("1.26.0", "sm100"), bshd(1, 4, 9))
    whole = scores.as_strided((1, 4, 12), (48, 12, 1))
    assert whole[..., 9:].isneginf().all()


@pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)
def test_size_rule(version, arch):
    namespace = healthy(version, arch)
    strict = version < "1.26" or (arch == "sm100" and "1.27" <= version < "1.32")
    most = {True: 8, False: 8 + 3 if (version, arch) == ("1.32.0", "sm100") else 1000}[strict]
    scores_of(namespace, bshd(1, min(most, 64), 2), ratio=4)
    if most < 1000:
        with pytest.raises(ValueError, match="expected at most"):
            scores_of(namespace, bshd(1, most + 1, 2), ratio=4)


@pytest.mark.parametrize("heads", [4, 8, 16, 32, 48, 64, 96, 128])
@pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)
def test_heads_served(version, arch, heads):
    served = {32, 64}
    if arch == "sm90" and version >= "1.27":
        served |= {16}
    if arch == "sm100" and version >= "1.32":
        served |= {4, 8, 16}
    namespace, tensors = healthy(version, arch), bshd(1, 4, 4, heads)
    if heads in served:
        assert scores_of(namespace, tensors).shape == (1, 4, 4)
    else:
        with pytest.raises(AssertionError if arch == "sm90" else ValueError, match="heads"):
            scores_of(namespace, tensors)


def test_sm90_is_refused_before_1_25():
    with pytest.raises(RuntimeError, match=r"1\.24\.0 does not run on sm90"):
        scores_of(healthy("1.24.0", "sm90"), bshd(1, 4, 4))


@pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)
def test_fp32_weights(version, arch):
    q, k, w = bshd(1, 4, 4)
    namespace = healthy(version, arch)
    if version < "1.31":
        with pytest.raises(AssertionError, match="w is"):
            scores_of(namespace, (q, k, w.float()))
        return
    assert torch.equal(scores_of(namespace, (q, k, w.float())), scores_of(namespace, (q, k, w)))
    strided = w.float().repeat_interleave(2, dim=2)[..., ::2]
    with pytest.raises(NotImplementedError, match="unit last stride"):
        scores_of(namespace, (q, k, strided))


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_argument_errors_have_the_release_types(arch):
    namespace = healthy("1.32.0", arch)
    strict = AssertionError if arch == "sm90" else ValueError
    q, k, w = bshd(1, 4, 4)
    cases = [
        ((q.half(), k, w), {}, AssertionError),
        ((q, k.float(), w), {}, AssertionError),
        ((q[..., :64], k[..., :64], w), {}, strict),
        ((q, k.expand(1, 4, 2, 128), w), {}, strict),
        ((q, k, w), {"qhead_per_kv_head": 16}, strict),
        ((q, k, w), {"ratio": 0}, ValueError),
        ((q, k, w), {"q_stage": 3}, ValueError),
        ((q, k, w), {"q_causal_offsets": torch.zeros(1, dtype=torch.int64)}, ValueError),
        ((q, k, w), {"q_causal_offsets": int32(0, 0)}, ValueError),
        ((q, k, w), {"precision": "mxfp8"}, NotModelledError),
        ((q, k, w), {"q_scale": w}, ValueError),
    ]
    for tensors, keywords, error in cases:
        with pytest.raises(error):
            scores_of(namespace, tensors, **keywords)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_prefix_sum_errors(arch):
    namespace, tensors, cu = healthy("1.32.0", arch), thd(4, 4), prefix([4])
    both = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
    one = ValueError if arch == "sm90" else AssertionError
    cases = [
        ({"cu_seqlens_q": cu, "max_seqlen_q": 4, "max_seqlen_k": 4}, one),
        ({**both, "max_seqlen_q": 4}, ValueError),
        ({**both, "max_seqlen_k": 4}, ValueError),
        (
            {"cu_seqlens_q": cu.long(), "cu_seqlens_k": cu, "max_seqlen_q": 4, "max_seqlen_k": 4},
            AssertionError,
        ),
        (
            {
                "cu_seqlens_q": prefix([2, 2]),
                "cu_seqlens_k": cu,
                "max_seqlen_q": 4,
                "max_seqlen_k": 4,
            },
            AssertionError,
        ),
    ]
    for keywords, error in cases:
        with pytest.raises(error):
            scores_of(namespace, tensors, **keywords)


def test_sm90_refuses_tuning_arguments():
    with pytest.raises(ValueError, match="n_block_size"):
        scores_of(healthy("1.32.0", "sm90"), bshd(1, 4, 4), n_block_size=64)
    scores_of(healthy("1.32.0", "sm100"), bshd(1, 4, 4), n_block_size=64)


@pytest.mark.parametrize("keys", [8, 9])
@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_caller_out_keeps_its_identity(arch, keys):
    tensors = bshd(1, 4, keys)
    out = torch.zeros(1, 4, keys)
    namespace = healthy("1.27.0", arch)
    result = namespace.indexer_forward_wrapper(*tensors, ratio=1, out=out)["scores"]
    assert result is out
    assert torch.equal(out, scores_of(namespace, tensors))
    with pytest.raises(AssertionError if arch == "sm90" else ValueError):
        namespace.indexer_forward_wrapper(*tensors, ratio=1, out=torch.zeros(1, 4, keys + 1))


def test_lse_on_sm90_only():
    tensors = bshd(1, 4, 8)
    result = healthy("1.27.0", "sm90").indexer_forward_wrapper(
        *tensors, ratio=1, return_lse=True, q_causal_offsets=int32(-2)
    )
    assert list(result.keys()) == ["scores", "lse"]
    torch.testing.assert_close(result["lse"], torch.logsumexp(result["scores"], dim=2))
    assert result["lse"][0, :2].isneginf().all(), "a row without keys"
    with pytest.raises(NotImplementedError, match="lse"):
        healthy("1.27.0", "sm100").indexer_forward_wrapper(*tensors, ratio=1, return_lse=True)


@pytest.mark.parametrize(("version", "arch"), [("1.32.0", "sm100"), ("1.32.0", "sm90")])
def test_relu_maps_nan_to_zero_and_weights_keep_it(version, arch):
    q, k, w = bshd(1, 4, 4)
    k[0, 1] = float("nan")
    clean = scores_of(healthy(version, arch), (q, k, w))[0]
    assert (clean[1:, 1] == 0).all()
    assert torch.isfinite(clean[1:, 0]).all()
    w[0, 2, 5] = float("nan")
    assert scores_of(healthy(version, arch), (q, k, w))[0, 2, :3].isnan().all()


def test_infinite_products_pass_the_relu():
    q, k, w = bshd(1, 2, 2)
    q[:], w[:] = 3e38, 1.0
    k[0, 0] = 3e38
    scores = scores_of(healthy("1.32.0", "sm100"), (q, k, w))[0]
    assert scores[0, 0] == float("inf")


def test_no_keys_give_the_empty_result():
    scores = scores_of(healthy("1.32.0", "sm100"), bshd(2, 3, 0), ratio=4)
    assert scores.shape == (2, 3, 0)


@pytest.mark.parametrize("rows", [1, 33, 130])
def test_blocks_of_rows_and_keys_do_not_change_the_result(rows):
    q, k, w = bshd(1, rows, 2200, heads=64)
    scores = scores_of(healthy("1.32.0", "sm100"), (q, k, w), q_causal_offsets=int32(2000))[0]
    limits = [min(2000 + row + 1, 2200) for row in range(rows)]
    assert_scores(scores, exact(q[0], k[0, :, 0], w[0]), visible(limits, 2200))


def test_results_are_wrapped_like_the_inputs():
    q, k, w = (cuda_like(tensor) for tensor in bshd(1, 4, 8))
    scores = scores_of(modelled_namespace(), (q.requires_grad_(), k, w))
    assert scores.is_cuda
    assert not scores.requires_grad, "a kernel's output has no graph"
    plain = scores_of(modelled_namespace(), bshd(1, 4, 8))
    assert not plain.is_cuda


def test_strided_inputs_are_staged():
    q, k, w = bshd(1, 8, 16)
    wide = q.repeat_interleave(2, dim=1)[:, ::2]
    assert not wide.is_contiguous()
    namespace = healthy("1.32.0", "sm100")
    assert torch.equal(scores_of(namespace, (wide, k, w)), scores_of(namespace, (q, k, w)))
