import pytest
import torch
from kernel_inputs import FORWARD_PAIRS, healthy, int32, picked_sets, top_sets

from harness.kernels import NotModelledError, cuda_like, modelled_namespace
from harness.kernels.poison import is_poison

NAN, INF = float("nan"), float("inf")


def distinct(rows, cols, seed=0):
    """Scores without equal values in a row, positive and negative."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(cols, generator=generator) for _ in range(rows)])
    return (order.float() - cols / 3) * 0.37


def positive_nan(dtype):
    """Conversion may give NaN either sign, and the sign decides the rank of a half type."""
    nan = torch.tensor([NAN], dtype=dtype)
    return nan.abs()


def lengths(*values):
    return int32(*values)


@pytest.mark.parametrize("top_k", [100, 128, 384, 768])
@pytest.mark.parametrize("rows", [148, 149])
@pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)
def test_best_columns_whatever_the_order(version, arch, rows, top_k):
    scores = distinct(rows, 900)
    seq_lens = torch.arange(900 - rows + 1, 901, dtype=torch.int32)
    result = healthy(version, arch).indexer_top_k_wrapper(scores, seq_lens, top_k)
    indices, values = result["indices"], result["values"]
    assert indices.dtype == torch.int32
    assert indices.shape == (rows, top_k)
    assert picked_sets(indices) == top_sets(scores, seq_lens.tolist(), top_k)
    found = scores.gather(1, indices.clamp(min=0).long()).masked_fill(indices < 0, -INF)
    assert torch.equal(values, found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)
def test_rows_not_longer_than_top_k_come_in_order(version, arch, dtype):
    scores = torch.tensor([[0.0, -INF, 3.0, 1.0, 2.0, 9.0]] * 5).to(dtype)
    scores[:, 0] = positive_nan(dtype)
    result = healthy(version, arch).indexer_top_k_wrapper(scores, lengths(-1, 0, 3, 4, 5), 4)
    assert result["indices"][:4].tolist() == [
        [-1, -1, -1, -1],
        [-1, -1, -1, -1],
        [0, 1, 2, -1],
        [0, 1, 2, 3],
    ]
    values = result["values"]
    assert values.dtype == dtype
    assert values[:2].isneginf().all()
    assert values[2].tolist()[1:] == [-INF, 3.0, -INF]
    assert values[2, 0].isnan()
    assert set(result["indices"][4].tolist()) == {0, 2, 3, 4}, "length K + 1 is ranked"


@pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)
def test_fewer_finite_scores_than_top_k_give_any_minus_inf_columns(version, arch):
    scores = torch.full((1, 64), -INF)
    scores[0, :5] = torch.arange(5.0)
    seen = set()
    for seed in range(6):
        namespace = healthy(version, arch, seed)
        picks = namespace.indexer_top_k_wrapper(scores, lengths(50), 16)["indices"][0].tolist()
        assert len(set(picks)) == 16
        assert set(range(5)) <= set(picks)
        assert all(0 <= pick < 50 for pick in picks)
        seen.add(frozenset(picks))
    assert len(seen) > 1, "which -inf columns are taken is up to chance"


def test_slot_order_and_ties_follow_the_seed():
    scores = torch.zeros(3, 200)

    def run(seed):
        namespace = modelled_namespace(seed=seed)
        return namespace.indexer_top_k_wrapper(scores, lengths(200, 200, 200), 10)["indices"]

    assert torch.equal(run(1), run(1))
    assert not torch.equal(run(1), run(2))
    ordered = distinct(1, 300).repeat(4, 1)
    picks = modelled_namespace().indexer_top_k_wrapper(ordered, lengths(300, 300, 300, 300), 50)
    assert len({tuple(row) for row in picks["indices"].tolist()}) > 1


@pytest.mark.parametrize(("version", "arch"), [p for p in FORWARD_PAIRS if p[0] >= "1.31"])
def test_tie_break_takes_the_smaller_or_larger_columns(version, arch):
    scores = torch.tensor([[5.0, 1.0, 1.0, 7.0, 1.0, 1.0, 1.0, 0.0]])
    namespace = healthy(version, arch)
    for rule, expected in ((1, {0, 3, 1, 2}), (2, {0, 3, 6, 5})):
        result = namespace.indexer_top_k_wrapper(scores, lengths(8), 4, tie_break=rule)
        assert picked_sets(result["indices"]) == [expected]
    with pytest.raises(ValueError, match="tie_break"):
        namespace.indexer_top_k_wrapper(scores, lengths(8), 4, tie_break=3)


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
def test_deterministic_sorts_and_takes_the_smaller_columns(arch):
    scores = torch.tensor([[5.0, 1.0, 1.0, 7.0, 1.0, 1.0, 1.0, 0.0]] * 2)
    result = healthy("1.32.0", arch).indexer_top_k_wrapper(
        scores, lengths(8, 2), 4, deterministic=True
    )
    assert result["indices"].tolist() == [[0, 1, 2, 3], [0, 1, -1, -1]]
    larger = healthy("1.32.0", arch).indexer_top_k_wrapper(
        scores, lengths(8, 8), 4, tie_break=2, deterministic=True
    )
    assert larger["indices"].tolist() == [[0, 3, 5, 6]] * 2


@pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)
def test_rank_order_of_special_values(version, arch):
    best_first = torch.tensor(
        [[NAN, -NAN, INF, 1.0, 0.0, -0.0, -1.0, -65519.0, -65520.0, -1e5, -INF]]
    )
    best_first[0, 1] = torch.tensor(-(2**22), dtype=torch.int32).view(torch.float32)
    assert best_first[0, 1].isnan()
    namespace = healthy(version, arch)
    for top_k in range(1, 11):
        picks = namespace.indexer_top_k_wrapper(best_first, lengths(11), top_k)["indices"]
        assert picked_sets(picks) == [set(range(top_k))]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_rank_by_their_own_bits(dtype):
    scores = torch.tensor([[1.0, 0.0, -0.0, -3.0, -INF, 0.0]]).to(dtype)
    scores[0, 5] = positive_nan(dtype)
    for top_k, expected in ((1, {5}), (2, {5, 0}), (3, {5, 0, 1}), (5, {5, 0, 1, 2, 3})):
        picks = modelled_namespace().indexer_top_k_wrapper(scores, lengths(6), top_k)["indices"]
        assert picked_sets(picks) == [expected]


def test_next_n_staggers_the_lengths():
    scores = distinct(6, 32)
    result = modelled_namespace().indexer_top_k_wrapper(scores, lengths(10, 2), 4, next_n=3)
    assert picked_sets(result["indices"])[:3] == top_sets(scores[:3], [8, 9, 10], 4)
    assert result["indices"][3:].tolist() == [[-1] * 4, [0, -1, -1, -1], [0, 1, -1, -1]]


def test_without_values():
    result = modelled_namespace().indexer_top_k_wrapper(
        distinct(2, 16), lengths(16, 3), 4, return_val=False
    )
    assert result["values"] is None
    assert not is_poison(result["indices"]).any()


@pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)
def test_refused_arguments(version, arch):
    call = healthy(version, arch).indexer_top_k_wrapper
    scores, seq_lens = distinct(4, 16), lengths(1, 2, 3, 4)
    for arguments in [
        (scores.double(), seq_lens, 2),
        (scores, seq_lens.long(), 2),
        (scores[0], seq_lens, 2),
        (scores, seq_lens.view(2, 2), 2),
        (scores, seq_lens, 0),
        (scores, seq_lens, 2049),
        (scores, seq_lens, 2, 2),
        (scores[:, :0], seq_lens, 2),
    ]:
        with pytest.raises(ValueError, match=r"expected|refuses"):
            call(*arguments)
    with pytest.raises(NotModelledError):
        call(scores, seq_lens, 2, num_copy_bits=128)


def test_sm90_is_refused_before_1_25():
    with pytest.raises(RuntimeError, match="does not run on sm90"):
        healthy("1.24.1", "sm90").indexer_top_k_wrapper(distinct(1, 8), lengths(8), 2)


@pytest.mark.parametrize(("version", "arch"), FORWARD_PAIRS)
def test_strided_and_misaligned_inputs(version, arch):
    call = healthy(version, arch).indexer_top_k_wrapper
    padded = distinct(3, 12)[:, :9]
    shifted = torch.zeros(30)[1:28].view(3, 9)
    shifted.copy_(padded)
    for scores in (padded, shifted):
        if version < "1.32":
            with pytest.raises(ValueError, match="expected a contiguous tensor"):
                call(scores, lengths(9, 9, 9), 4)
        else:
            picks = call(scores, lengths(9, 9, 9), 4)["indices"]
            assert picked_sets(picks) == top_sets(padded, [9, 9, 9], 4)


def test_results_are_wrapped_like_the_scores():
    result = modelled_namespace().indexer_top_k_wrapper(
        cuda_like(distinct(2, 16)), lengths(16, 2), 4
    )
    assert result["indices"].is_cuda
    assert result["values"].is_cuda


def test_rows_in_several_chunks(monkeypatch):
    monkeypatch.setattr("harness.kernels.indexer_top_k._CHUNK_ELEMENTS", 200)
    scores = distinct(37, 90)
    seq_lens = torch.arange(20, 57, dtype=torch.int32)
    picks = modelled_namespace().indexer_top_k_wrapper(scores, seq_lens, 30)["indices"]
    assert picked_sets(picks) == top_sets(scores, seq_lens.tolist(), 30)
