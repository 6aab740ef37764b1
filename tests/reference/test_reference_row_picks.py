"""Picks of a score table, judged: each way of being wrong counts as what it is."""

from __future__ import annotations

import pytest
import torch

from harness.reference.row_picks import judge_table, reference_columns
from harness.reference.site import Site

SITE = Site(global_rank=0, cp_rank=0, microbatch=0, layer=1, seed=0)
SCORES = torch.tensor([[5.0, 1.0, 4.0, 3.0, 2.0, 9.0]])
"""Of a row of five keys, 0 and 2 are the best two; the sixth column lies past its length."""


def stats_of(picks, *, scores=SCORES, lengths=(5,), topk=2):
    found = judge_table(scores, torch.tensor(lengths), torch.tensor([picks]), topk)
    return found.evidence(SITE).total


def test_the_best_keys_in_any_order_are_right():
    for picks in ([0, 2], [2, 0]):
        stats = stats_of(picks)
        assert (stats.due, stats.exact, stats.overlap, stats.num_wrong) == (2, 2, 1.0, 0)


@pytest.mark.parametrize(
    ("picks", "counts"),
    [
        ([0, 3], {"below": 1}),
        ([0, 5], {"future": 1, "missing": 1}),
        ([0, 6], {"out_of_range": 1, "missing": 1}),
        ([0, -7], {"out_of_range": 1, "missing": 1}),
        ([0, 0], {"duplicate": 1, "missing": 1}),
        ([0, -1], {"missing": 1}),
    ],
)
def test_a_wrong_pick_counts_as_what_it_is(picks, counts):
    stats = stats_of(picks)
    found = {
        name: getattr(stats, name)
        for name in ("below", "future", "out_of_range", "duplicate", "missing")
        if getattr(stats, name)
    }
    assert found == counts
    assert stats.exact == 1


def test_how_far_a_pick_falls_short_is_kept():
    assert stats_of([0, 1]).largest_gap == 3.0


def test_ties_stand_in_for_each_other_and_not_for_better_keys():
    scores = torch.tensor([[7.0, 3.0, 3.0, 3.0]])
    assert stats_of([0, 3], scores=scores, lengths=(4,)).tie == 1
    both = stats_of([2, 3], scores=scores, lengths=(4,))
    assert (both.exact, both.tie, both.below) == (0, 1, 1)


def test_masked_keys_tie_among_each_other():
    scores = torch.tensor([[1.0, -torch.inf, -torch.inf, -torch.inf]])
    assert stats_of([0, 3], scores=scores, lengths=(4,)).num_wrong == 0


def test_of_a_row_with_a_nan_only_bounds_and_repeats_are_judged():
    scores = torch.tensor([[1.0, torch.nan, 2.0, 3.0]])
    assert stats_of([0, 1], scores=scores, lengths=(3,)).num_wrong == 0
    assert stats_of([0, 3], scores=scores, lengths=(3,)).future == 1
    assert stats_of([0, 0], scores=scores, lengths=(3,)).duplicate == 1


@pytest.mark.parametrize(
    ("picks", "length", "wrong"),
    [
        ([0, 1, -1, -1], 2, 0),
        ([1, -1, 0, -1], 2, 0),
        ([0, -1, -1, -1], 2, 1),
        ([0, 2, -1, -1], 2, 2),
        ([-1, -1, -1, -1], 0, 0),
        ([-1, -1, -1, -1], -3, 0),
        ([0, -1, -1, -1], 0, 1),
        ([0, 1, 2, 3], 9, 0),
    ],
)
def test_short_rows_are_due_all_they_see(picks, length, wrong):
    scores = torch.zeros(1, 4)
    found = judge_table(scores, torch.tensor([length]), torch.tensor([picks]), 4)
    stats = found.evidence(SITE).total
    assert stats.num_wrong == wrong
    assert (stats.rows, stats.rows_exhaustive) == (1, 1)
    assert stats.due == min(max(length, 0), 4)


def test_rows_add_up_and_the_worst_are_kept():
    scores = torch.arange(10.0).repeat(8, 1)
    picks = torch.tensor([[8, 9]] * 6 + [[0, 9], [0, 12]])
    found = judge_table(scores, torch.full((8,), 10), picks, 2)
    stats = found.evidence(SITE).total
    assert (stats.rows, stats.due, stats.exact, stats.below) == (8, 16, 13, 2)
    worst = found.evidence(SITE).worst_rows
    assert [row.row for row in worst] == [7, 6]
    assert worst[0].wrong == (0, 12)
    assert worst[1].due == (8,)


def test_parts_that_do_not_belong_together_are_an_error():
    with pytest.raises(ValueError, match="6 rows"):
        judge_table(torch.zeros(6, 4), torch.zeros(5), torch.zeros(6, 2).long(), 2)


def test_reference_columns_prefer_the_lower_of_equal_ones():
    row = torch.tensor([1.0, 2.0, 2.0, torch.nan, 2.0])
    assert reference_columns(row, 2).tolist() == [1, 2]
    assert reference_columns(row, 5).tolist() == [0, 1, 2, 3, 4]
