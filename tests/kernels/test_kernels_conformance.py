"""The conformance list of the semantics notes, as released, for every release and architecture.

Each test is one entry of the list; the files beside this one go deeper into single operations.
"""

import pytest
import torch
from kernel_inputs import FORWARD_PAIRS, FUSED_PAIRS, bshd, int32, picked_sets, prefix, thd

from harness.kernels import (
    ARCHES,
    RELEASES,
    AddressFault,
    modelled_flash_mla,
    modelled_namespace,
)
from harness.kernels.addresses import Bounds
from harness.kernels.topk_plan import topk_plan
from harness.kernels.topk_rows import check_scratch

INF = float("inf")
every_release = pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)


def counts(namespace, tensors, **keywords):
    scores = namespace.indexer_forward_wrapper(*tensors, **keywords)["scores"]
    return torch.isfinite(scores).sum(-1)


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("rows", "keys"), [(6, 40), (40, 40), (1, 9)])
@every_release
def test_limits_off_the_square(version, arch, ratio, rows, keys):
    # 64 heads: the 32-head mask leak has tests of its own.
    namespace = modelled_namespace(version, arch)
    seen = counts(namespace, bshd(1, rows, keys, heads=64), ratio=ratio)[0].tolist()
    start = keys * ratio - rows if namespace.mask_alignment == "bottom_right" else 0
    assert seen == [min((start + row + 1) // ratio, keys) for row in range(rows)]


@pytest.mark.parametrize("top_k", [100, 128, 384, 768])
@pytest.mark.parametrize("rows", [148, 149])
@every_release
def test_lengths_around_top_k(version, arch, rows, top_k):
    scores = torch.rand(rows, 1000, generator=torch.Generator().manual_seed(0)) + 1
    lengths = torch.full((rows,), 1000, dtype=torch.int32)
    lengths[:6] = int32(-1, 0, 1, top_k - 1, top_k, top_k + 1)
    indices = modelled_namespace(version, arch).indexer_top_k_wrapper(scores, lengths, top_k)[
        "indices"
    ]
    for row, length in enumerate(lengths[:5].clamp(min=0).tolist()):
        assert indices[row].tolist() == [*range(length)] + [-1] * (top_k - length)
    assert set(indices[5].tolist()) == set(scores[5, : top_k + 1].topk(top_k).indices.tolist())
    best = scores[6:].topk(top_k, dim=1).indices
    assert picked_sets(indices[6:]) == picked_sets(best)


@every_release
def test_fewer_finite_scores_than_top_k(version, arch):
    scores = torch.full((8, 300), -INF)
    scores[:, :10] = torch.arange(10.0)
    storage = torch.cat([scores.flatten(), torch.zeros(4096)])
    namespace = modelled_namespace(version, arch)
    lengths = torch.full((8,), 200).int()
    indices = namespace.indexer_top_k_wrapper(storage[:2400].view(8, 300), lengths, 32)["indices"]
    finite_kept = all(set(range(10)) <= picks for picks in picked_sets(indices))
    assert finite_kept
    if "d446" in namespace.defects:
        assert (indices >= 200).any()
        assert namespace.findings
    else:
        assert all(len(picks) == 32 for picks in picked_sets(indices))
        assert (indices < 200).all()
        assert not namespace.findings


@every_release
def test_special_values_are_ranked(version, arch):
    scores = torch.full((2, 40), -INF)
    scores[:, 30:35] = torch.tensor([float("nan"), 0.0, -0.0, -65519.0, -65520.0])
    namespace = modelled_namespace(version, arch, defects="none")
    for top_k, expected in enumerate(({30}, {31}, {32}, {33}, {34}), start=1):
        picks = namespace.indexer_top_k_wrapper(scores, int32(40, 40), top_k)["indices"]
        assert expected <= picked_sets(picks)[0]
        assert picked_sets(picks)[0] == set(range(30, 30 + top_k))


@pytest.mark.parametrize("invalid", [-1, -(2**31), 20, 3 * 20])
@pytest.mark.parametrize("arch", ARCHES)
def test_invalid_ids_are_ignored_by_sparse_attention(arch, invalid):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 64, 576, generator=generator).bfloat16()
    kv = torch.randn(20, 1, 576, generator=generator).bfloat16()
    ids = torch.full((2, 1, 128), invalid, dtype=torch.int32)
    ids[:, 0, :7] = torch.arange(7)
    forward = modelled_flash_mla(arch)
    with_invalid = forward(q, kv, ids, 0.04)
    alone = forward(q, kv, ids, 0.04, topk_length=int32(7, 7))
    for got, want in zip(with_invalid, alone, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("heads", [16, 32, 48, 64, 96, 128])
@every_release
def test_head_counts(version, arch, heads):
    namespace, tensors = modelled_namespace(version, arch), bshd(1, 4, 4, heads)
    if heads in RELEASES[version].forward[arch].heads:
        assert counts(namespace, tensors, ratio=1)[0].tolist() == [1, 2, 3, 4]
    else:
        with pytest.raises((ValueError, AssertionError)):
            counts(namespace, tensors, ratio=1)


@pytest.mark.parametrize("arch", ["sm100"])
@pytest.mark.parametrize("version", sorted({version for version, _ in FUSED_PAIRS}))
def test_local_and_global_ids_of_several_batches(version, arch):
    namespace = modelled_namespace(version, arch)
    q, k, w = bshd(4, 8, 8)
    ids = {
        wide: namespace.indexer_forward_top_k_wrapper(
            q, k, w, 3, ratio=1, topk_indices_global=wide
        )["indices"]
        for wide in (True, False)
    }
    batch = torch.arange(4).view(4, 1, 1)
    assert ((ids[False] >= -1) & (ids[False] < 8)).all()
    back = torch.where(ids[True] < 0, ids[True], ids[True] - 8 * batch)
    assert [picked_sets(part) for part in back] == [picked_sets(part) for part in ids[False]]
    scores = namespace.indexer_forward_wrapper(q, k, w, ratio=1)["scores"].view(32, 8)
    lengths = torch.arange(1, 9).repeat(4).int()
    plain = namespace.indexer_top_k_wrapper(scores, lengths, 3)["indices"]
    assert picked_sets(plain) == picked_sets(ids[False].view(32, 3)), "plain top-k is local"


@every_release
def test_thd_with_an_empty_segment(version, arch):
    namespace = modelled_namespace(version, arch)
    seen = counts(
        namespace,
        thd(7, 7, heads=64),
        ratio=1,
        cu_seqlens_q=prefix([3, 0, 4]),
        cu_seqlens_k=prefix([3, 0, 4]),
        max_seqlen_q=4,
        max_seqlen_k=4,
    )
    assert seen.tolist() == [1, 2, 3, 1, 2, 3, 4]


@pytest.mark.parametrize("columns", [262144, 262208, 262209])
@every_release
def test_large_scratch_by_arithmetic(version, arch, columns):
    defects = RELEASES[version].defects[arch]
    plan = topk_plan(n_rows=4096, num_cols=columns, top_k=2048, chunked="d311" not in defects)
    rows = max(count for _, count in plan.launches)
    bounds = Bounds(kernel="indexer_top_k_wrapper", findings=[])
    spill = {"half": 0, "first": 0, "count": 1000}
    if "d311" in defects and columns == 262209:
        with pytest.raises(AddressFault, match="int32_overflow"):
            check_scratch(bounds, plan, row=rows - 1, **spill)
    else:
        check_scratch(bounds, plan, row=rows - 1, **spill)


@pytest.mark.parametrize("keys", [8, 9])
@every_release
def test_thd_scores_handed_straight_to_top_k(version, arch, keys):
    """Padded views are no input of top-k: a caller that skips contiguous() is refused."""
    namespace = modelled_namespace(version, arch)
    cu = prefix([keys, keys])
    scores = namespace.indexer_forward_wrapper(
        *thd(2 * keys, 2 * keys, heads=64),
        ratio=1,
        cu_seqlens_q=cu,
        cu_seqlens_k=cu,
        max_seqlen_q=keys,
        max_seqlen_k=keys,
    )["scores"]
    lengths = torch.arange(1, keys + 1).repeat(2).int()
    if arch == "sm100" and version < "1.27" and keys % 4:
        with pytest.raises(ValueError, match="contiguous"):
            namespace.indexer_top_k_wrapper(scores, lengths, 4)
    else:
        picks = namespace.indexer_top_k_wrapper(scores, lengths, 4)["indices"]
        assert [len(row) for row in picked_sets(picks)] == lengths.clamp(max=4).tolist()
