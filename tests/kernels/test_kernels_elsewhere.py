"""Faults of other kernels, planted: each switch shows, and nothing shows without it."""

from __future__ import annotations

import pytest
import torch

from harness.kernels import DEFECTS, RELEASES, AddressFault, modelled_namespace
from harness.kernels.elsewhere import CANDIDATE_CAP, TIE_CAP


def top_k(defects, scores, length, k):
    namespace = modelled_namespace("1.32.0", defects=defects)
    lengths = torch.full((scores.shape[0],), length, dtype=torch.int32)
    result = namespace.indexer_top_k_wrapper(scores, lengths, k)
    return result["indices"].to(torch.int64), result["values"]


def with_and_without(name, scores, length, k):
    return (top_k(defects, scores, length, k) for defects in ((name,), "none"))


@pytest.mark.parametrize("needed", [TIE_CAP - 1, TIE_CAP, TIE_CAP + 1])
def test_a_plateau_longer_than_the_cap_leaves_slots_empty(needed):
    scores = torch.zeros(2, 4000)
    scores[:, : 2048 - needed] = 1.0
    (faulty, values), (right, _) = with_and_without("tie_cap", scores, 4000, 2048)
    empty = max(needed - TIE_CAP, 0)
    assert (faulty < 0).sum(1).tolist() == [empty, empty]
    assert values.isneginf().sum(1).tolist() == [empty, empty]
    assert not (right < 0).any()


def test_the_lowest_candidates_survive():
    rising = (1.0 + torch.arange(8000) * 2.0**-23).repeat(1, 1)
    (faulty, _), (right, _) = with_and_without("candidate_cap", rising, 8000, 64)
    assert int(faulty.max()) == CANDIDATE_CAP - 1
    assert int(right.min()) == 8000 - 64
    short = rising[:, :CANDIDATE_CAP].contiguous()
    (faulty, _), (right, _) = with_and_without("candidate_cap", short, CANDIDATE_CAP, 64)
    assert faulty.sort().values.equal(right.sort().values)


def test_keys_above_the_bucket_are_kept():
    scores = torch.cat([torch.ones(1, 5000), torch.full((1, 3), 100.0)], 1)
    (faulty, _), _ = with_and_without("candidate_cap", scores, 5003, 64)
    assert {5000, 5001, 5002} <= set(faulty[0].tolist())
    assert len(set(faulty[0].tolist())) == 64


def test_a_nan_gives_ids_out_of_range_on_its_own_row_alone():
    scores = torch.randn(2, 300, generator=torch.Generator().manual_seed(0))
    scores[1, 7] = torch.nan
    (faulty, _), (right, _) = with_and_without("nan_ids", scores, 300, 64)
    assert ((faulty < 0) | (faulty >= 300)).any(1).tolist() == [False, True]
    assert ((right >= 0) & (right < 300)).all()


def test_scores_are_zero():
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, n, h, 128, generator=generator) for n, h in ((4, 64), (40, 1)))
    w = torch.randn(1, 4, 64, generator=generator).abs()
    tensors = [tensor.bfloat16() for tensor in (q, k, w)]
    for defects, zero in ((("zero_scores",), True), ("none", False)):
        scores = modelled_namespace("1.32.0", defects=defects).indexer_forward_wrapper(
            *tensors, ratio=1
        )["scores"]
        visible = scores[~scores.isneginf()]
        assert visible.numel() == 1 + 2 + 3 + 4
        assert bool((visible == 0).all()) == zero


def test_a_rounded_width_reads_past_the_table():
    scores = torch.randn(3, 705)
    with pytest.raises(AddressFault) as caught:
        top_k(("rounded_width",), scores, 705, 64)
    assert caught.value.evidence.klass == "past_allocation"
    for columns in (512, 1024):
        even = torch.randn(3, columns)
        picks, _ = top_k(("rounded_width",), even, columns, 64)
        assert int(picks.max()) < columns


def test_one_key_past_the_limit_is_ranked():
    rising = torch.arange(100.0).repeat(2, 1)
    (faulty, _), (right, _) = with_and_without("over_limit", rising, 70, 32)
    assert faulty.max(1).values.tolist() == [70, 70]
    assert right.max(1).values.tolist() == [69, 69]
    at_the_end, _ = top_k(("over_limit",), rising, 100, 32)
    assert int(at_the_end.max()) == 99


def test_another_width_dies_of_a_bare_assertion():
    scores = torch.randn(2, 3000)
    with pytest.raises(AssertionError):
        top_k(("fixed_width",), scores, 3000, 64)
    picks, _ = top_k(("fixed_width",), scores, 3000, 2048)
    assert picks.shape == (2, 2048)


def test_no_release_has_them():
    names = {name for name, defect in DEFECTS.items() if defect.basis == "elsewhere"}
    assert len(names) == 7
    shipped = {
        name
        for release in RELEASES.values()
        for found in release.defects.values()
        for name in found
    }
    assert not names & shipped
