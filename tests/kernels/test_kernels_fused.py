import pytest
import torch
from kernel_inputs import (
    FUSED_PAIRS,
    bshd,
    exact,
    healthy,
    int32,
    picked_sets,
    prefix,
    thd,
    top_sets,
)

from harness.kernels import AddressFault, cuda_like, modelled_namespace
from harness.kernels.candidates import auto_window, batch_floats, visible_total
from harness.kernels.indexer_forward_top_k import top_softmax
from harness.kernels.poison import is_poison

INF = float("inf")


def call(namespace, tensors, top_k, **keywords):
    return namespace.indexer_forward_top_k_wrapper(*tensors, top_k, **{"ratio": 1, **keywords})


@pytest.mark.parametrize(("version", "arch"), FUSED_PAIRS)
@pytest.mark.parametrize("offset", [None, 20])
def test_bshd_selects_what_forward_scores(version, arch, offset):
    q, k, w = bshd(2, 30, 60)
    offsets = None if offset is None else int32(offset, offset)
    namespace = healthy(version, arch)
    result = call(namespace, (q, k, w), 16, q_causal_offsets=offsets, sm_scale=0.5)
    assert list(result.keys()) == ["indices", "logits", "softmax"]
    assert result["indices"].shape == (2, 30, 16)
    scores = namespace.indexer_forward_wrapper(
        q, k, w, ratio=1, q_causal_offsets=offsets, sm_scale=0.5
    )["scores"]
    lengths = [min((offset or 0) + row + 1, 60) for row in range(30)]
    for batch in range(2):
        local = result["indices"][batch] - batch * 60 * (result["indices"][batch] >= 0)
        assert picked_sets(local) == top_sets(scores[batch], lengths, 16)
        found = scores[batch].gather(1, local.clamp(min=0).long())
        found.masked_fill_(local < 0, -INF)
        torch.testing.assert_close(result["logits"][batch], found)
    expected = result["logits"].softmax(2)
    torch.testing.assert_close(result["softmax"], expected)


def test_short_rows_come_in_order_and_padded():
    result = call(healthy("1.32.0", "sm100"), bshd(1, 6, 6), 4, topk_indices_global=False)
    assert result["indices"][0, :4].tolist() == [
        [0, -1, -1, -1],
        [0, 1, -1, -1],
        [0, 1, 2, -1],
        [0, 1, 2, 3],
    ]
    assert result["logits"][0, 0, 1:].isneginf().all()
    assert result["softmax"][0, 0].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(("version", "arch"), FUSED_PAIRS)
def test_ids_are_global_by_default_and_local_when_asked(version, arch):
    tensors = bshd(3, 4, 4)
    namespace = healthy(version, arch)
    wide = call(namespace, tensors, 4)["indices"]
    local = call(namespace, tensors, 4, topk_indices_global=False)["indices"]
    shift = torch.arange(3).view(3, 1, 1) * 4
    assert torch.equal(wide, torch.where(local < 0, local, local + shift).int())


def thd_tensors():
    q, k, w = thd(9, 14)
    cu_q, cu_k = prefix([4, 0, 5]), prefix([6, 0, 8])
    return (q, k, w), {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}


@pytest.mark.parametrize(("version", "arch"), FUSED_PAIRS)
@pytest.mark.parametrize("wide", [True, False])
def test_thd_ids_and_offsets(version, arch, wide):
    (q, k, w), cu = thd_tensors()
    result = call(
        healthy(version, arch),
        (q, k, w),
        3,
        **cu,
        q_causal_offsets=int32(2, 0, 3),
        topk_indices_global=wide,
        return_lse=True,
        return_softmax=False,
    )
    assert list(result.keys()) == ["indices", "logits", "lse"]
    expected = []
    for (start, stop), first, count, offset in (((0, 4), 0, 6, 2), ((4, 9), 6, 8, 3)):
        scores = exact(q[start:stop], k[first : first + count, 0], w[start:stop])
        lengths = [min(offset + row + 1, count) for row in range(stop - start)]
        base = first if wide else 0
        expected += [{c + base for c in best} for best in top_sets(scores, lengths, 3)]
        for row, length in enumerate(lengths):
            lse = torch.logsumexp(scores[row, :length], 0)
            assert abs(result["lse"][start + row] - lse) < 1e-3
    assert picked_sets(result["indices"]) == expected


def test_lse_covers_all_visible_scores_and_is_minus_inf_without_any():
    result = call(
        healthy("1.32.0", "sm100"), bshd(1, 4, 8), 2, return_lse=True, q_causal_offsets=int32(-2)
    )
    assert result["lse"][0, :2].isneginf().all()
    assert (result["indices"][0, :2] == -1).all()
    assert (result["softmax"][0, :2] == 0).all()


def test_softmax_of_odd_rows():
    nan = float("nan")
    rows = torch.tensor([[-INF, -INF], [1.0, nan], [INF, 0.0], [0.0, -INF]])
    soft = top_softmax(rows)
    assert soft[0].tolist() == [0, 0]
    assert soft[1].isnan().all()
    assert soft[2].isnan().all()
    assert soft[3].tolist() == [1, 0]


def ranked_by_weights(weights):
    """One row whose scores over the keys are the weights, in key order."""
    keys = weights.numel()
    q = torch.zeros(1, 1, 32, 128)
    k = torch.zeros(1, keys, 1, 128)
    for column in range(keys):
        q[0, 0, column, column], k[0, column, 0, column] = 1, 1
    w = torch.zeros(1, 1, 32)
    w[0, 0, :keys] = weights
    return q.bfloat16(), k.bfloat16(), w


def test_rank_order_is_that_of_the_bits():
    nan = torch.tensor([0x7FC00000, -(2**22)], dtype=torch.int32).view(torch.float32)
    special = torch.tensor([-INF, 0.0, 1.0, INF])
    # Scores are sums over heads, so NaN and inf reach a column of their own only by its weight.
    from harness.kernels.ranking import bit_order

    values = torch.cat([nan, special, torch.tensor([-0.0])])
    order = bit_order(values).argsort(descending=True).tolist()
    assert order == [0, 5, 4, 3, 6, 2, 1], "positive NaN first, negative NaN last, +0 above -0"


def test_deterministic_ties_take_the_smallest_columns():
    q, k, w = ranked_by_weights(torch.tensor([2.0, 1.0, 1.0, 5.0, 1.0, 1.0]))
    tensors = (q, k, w.bfloat16())
    seen = set()
    for seed in range(8):
        namespace = modelled_namespace("1.32.0", seed=seed)
        fixed = call(namespace, tensors, 4, q_causal_offsets=int32(9), deterministic=True)
        assert picked_sets(fixed["indices"][0]) == [{0, 3, 1, 2}]
        free = call(namespace, tensors, 4, q_causal_offsets=int32(9))
        seen.add(frozenset(picked_sets(free["indices"][0])[0]))
    assert len(seen) > 1


def test_caller_buffers_keep_their_identity():
    tensors = bshd(1, 6, 6)
    buffers = {
        "out_indices": torch.zeros(1, 6, 4, dtype=torch.int32),
        "out_logits": torch.zeros(1, 6, 4),
        "softmax_out": torch.zeros(1, 6, 4),
        "lse_out": torch.zeros(1, 6),
        "cand_buffer": torch.zeros(21),
    }
    result = call(healthy("1.32.0", "sm100"), tensors, 4, **buffers)
    assert result["indices"] is buffers["out_indices"]
    assert result["logits"] is buffers["out_logits"]
    assert result["softmax"] is buffers["softmax_out"]
    assert result["lse"] is buffers["lse_out"]
    assert buffers["lse_out"].abs().sum() > 0
    with pytest.raises(ValueError, match="out_indices"):
        call(healthy("1.32.0", "sm100"), tensors, 4, out_indices=torch.zeros(1, 6, 5).int())


def test_results_are_wrapped_like_q():
    q, k, w = bshd(1, 4, 4)
    result = call(modelled_namespace(), (cuda_like(q), k, w), 2)
    assert all(tensor.is_cuda for tensor in result)


def test_refused_arguments():
    namespace, (q, k, w) = healthy("1.32.0", "sm100"), bshd(1, 4, 4)
    cases = [
        ((q, k, w, 0), {}, ValueError),
        ((q, k, w, 2049), {}, ValueError),
        ((q, k, w, 2), {"kv_stage": 3}, ValueError),
        ((q, k, w, 2), {"q_stage": 1}, ValueError),
        ((q.half(), k, w, 2), {}, TypeError),
        ((q, k, w.half(), 2), {}, TypeError),
        ((q, k.expand(1, 4, 2, 128), w, 2), {}, ValueError),
        ((q[:, :, :24], k, w[:, :, :24], 2), {}, ValueError),
        ((q, k[:, :2], w, 2), {"ratio": 1}, ValueError),
        ((q, k, w, 2), {"cand_buffer": torch.zeros(9)}, ValueError),
        ((q, k, w, 2), {"cand_batch_offsets": torch.zeros(2).long()}, ValueError),
        ((q, k, w, 2), {"cu_seqlens_q": prefix([4])}, ValueError),
        ((q, k, w, 2), {"microbatch_rows": 2, "return_lse": True}, NotImplementedError),
        ((q, k, w, 2), {"microbatch_rows": 2, "q_causal_offsets": int32(0)}, NotImplementedError),
        ((q, k, w, 2), {"microbatch_rows": 3, "ratio": 2}, ValueError),
        ((q, k, w, 2), {"ratio": 1, "q_causal_offsets": int32(0, 0)}, ValueError),
    ]
    for positional, keywords, error in cases:
        with pytest.raises(error):
            namespace.indexer_forward_top_k_wrapper(*positional, **{"ratio": 1, **keywords})
    with pytest.raises(TypeError):
        call(healthy("1.30.0", "sm100"), (q, k, w.float()), 2)
    call(healthy("1.31.0", "sm100"), (q, k, w.float()), 2)
    with pytest.raises(NotImplementedError, match="sm90"):
        call(healthy("1.32.0", "sm90"), (q, k, w), 2)


@pytest.mark.parametrize(("version", "most"), [("1.31.0", 8), ("1.32.0", 11)])
def test_size_rule_on_rows_and_on_thd_maxima(version, most):
    namespace = healthy(version, "sm100")
    call(namespace, bshd(1, most, 2), 2, ratio=4)
    with pytest.raises(ValueError, match="expected at most"):
        call(namespace, bshd(1, most + 1, 2), 2, ratio=4)
    cu = {"cu_seqlens_q": prefix([4]), "cu_seqlens_k": prefix([2])}
    call(namespace, thd(4, 2), 2, ratio=4, max_seqlen_q=most, max_seqlen_k=2, **cu)
    with pytest.raises(ValueError, match="expected at most"):
        call(namespace, thd(4, 2), 2, ratio=4, max_seqlen_q=most + 1, max_seqlen_k=2, **cu)


def test_windows_give_the_same_sets():
    tensors = bshd(1, 8, 8)
    one = call(healthy("1.32.0", "sm100"), tensors, 3, microbatch_rows=0)["indices"]
    many = call(healthy("1.32.0", "sm100"), tensors, 3, microbatch_rows=4)["indices"]
    assert picked_sets(one[0]) == picked_sets(many[0])


# Candidate buffer


@pytest.mark.parametrize("ratio", [1, 2, 3, 4])
def test_row_starts_are_sums_of_unclamped_limits(ratio):
    for tokens in range(40):
        assert visible_total(tokens, ratio) == sum(m // ratio for m in range(tokens + 1))
    for offset in (0, 1, 5):
        rows = [(offset + row + 1) // ratio for row in range(13)]
        assert batch_floats(13, ratio, offset) == sum(rows)


def test_public_buffer_sizes():
    size = modelled_namespace().compress_topk_cand_buffer_size
    assert size(2, 8192, 2048, 4) == 16_773_120
    assert size(1, 65536, 16384, 4) == 125_827_072
    assert size(1, 65536, 16384, 4, microbatch_rows=0) == 536_854_528
    assert size(1, 65536, 16384, 4, return_lse=True) == 536_854_528
    assert size(2, 4, 8, 1, q_causal_offsets=int32(0, 3)) == 10 + (4 + 5 + 6 + 7)
    with pytest.raises(NotImplementedError):
        size(1, 65536, 16384, 4, microbatch_rows=8192, return_lse=True)


def test_buffer_sizes_equal_the_installed_helpers():
    cudnn = pytest.importorskip("cudnn", reason="needs nvidia-cudnn-frontend")
    try:
        real = cudnn.DSA.compress_topk_cand_buffer_size
        real_thd = cudnn.DSA.compress_topk_cand_buffer_size_thd
    except (ImportError, AttributeError) as error:
        pytest.skip(f"needs the CuTe DSL and frontend 1.27 or later: {error}")
    namespace = modelled_namespace()
    for arguments in [
        *((1, 100, 50, 2), (3, 7, 7, 1), (8, 32768, 8192, 4), (4, 40000, 10000, 4)),
        *((1, 32770, 16385, 2), (1, 65536, 16384, 4, 4096)),
    ]:
        assert namespace.compress_topk_cand_buffer_size(*arguments) == real(*arguments)
    cu_q, cu_k = prefix([5, 0, 9, 4]), prefix([5, 3, 9, 4])
    starts, total = namespace.compress_topk_cand_buffer_size_thd(cu_q, cu_k, 2)
    real_starts, real_total = real_thd(cu_q, cu_k, 2)
    assert torch.equal(starts, real_starts)
    assert total == real_total


@pytest.mark.parametrize(
    ("rows", "batch", "ratio", "window"),
    [
        (32767, 1, 1, 0),
        (32768, 1, 1, 8192),
        (32768, 4, 1, 4096),
        (32768, 8, 1, 2048),
        (32769, 1, 2, 0),
        (32769, 1, 3, 8190),
    ],
)
def test_automatic_windows(rows, batch, ratio, window):
    assert auto_window(rows, batch, ratio) == window


# Addresses that the release trusts


def test_a_trusted_candidate_buffer_that_is_too_small():
    (q, k, w), cu = thd_tensors()
    need = batch_floats(4, 1) + batch_floats(5, 1)
    call(healthy("1.32.0", "sm100"), (q, k, w), 3, **cu, cand_buffer=torch.zeros(need))
    with pytest.raises(AddressFault) as caught:
        call(healthy("1.32.0", "sm100"), (q, k, w), 3, **cu, cand_buffer=torch.zeros(need - 1))
    evidence = caught.value.evidence
    assert (evidence.operand, evidence.klass) == ("cand_buffer", "past_allocation")
    assert (evidence.row, evidence.element_offset) == (8, need - 1)


def test_a_negative_offset_starts_in_front_of_the_buffer():
    namespace = healthy("1.32.0", "sm100")
    tensors, buffer = bshd(1, 4, 4), torch.zeros(100)
    call(namespace, tensors, 2, q_causal_offsets=int32(0), cand_buffer=buffer)
    with pytest.raises(AddressFault) as caught:
        call(namespace, tensors, 2, q_causal_offsets=int32(-3), cand_buffer=buffer)
    evidence = caught.value.evidence
    assert (evidence.operand, evidence.element_offset) == ("cand_buffer", -3)


def test_rows_behind_the_last_prefix_sum_search_past_its_end():
    (q, k, w), cu = thd_tensors()
    wider = torch.cat([q, q[:1]]), k, torch.cat([w, w[:1]])
    with pytest.raises(AddressFault) as caught:
        call(healthy("1.32.0", "sm100"), wider, 3, **cu)
    assert (caught.value.evidence.operand, caught.value.evidence.row) == ("cu_seqlens_q", 9)
    roomy = torch.cat([cu["cu_seqlens_q"], int32(99, 99)])[:4]
    namespace = healthy("1.32.0", "sm100")
    result = call(namespace, wider, 3, **{**cu, "cu_seqlens_q": roomy})
    assert [finding.klass for finding in namespace.findings] == ["past_tensor"]
    assert is_poison(result["indices"])[9].all(), "no segment owns the row"


def test_prefix_sums_past_the_tensors():
    q, k, w = thd(4, 4)
    for lengths, operand in (([5], "q"), ([4], "k")):
        cu_k = prefix([6])
        namespace = healthy("1.32.0", "sm100")
        with pytest.raises(AddressFault) as caught:
            call(
                namespace,
                (q, k, w),
                2,
                cu_seqlens_q=prefix(lengths),
                cu_seqlens_k=cu_k,
                q_causal_offsets=int32(2),
            )
        assert caught.value.evidence.operand == operand
