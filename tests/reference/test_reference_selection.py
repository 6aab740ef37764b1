"""The judgement of picks, against brute force over every selection that would be right."""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_brute import (
    SITE,
    all_right,
    any_picks,
    evidence,
    facts_of,
    judge,
    judge_last,
    judge_row,
    make_case,
    one_row,
    scramble,
    whole,
)

from harness.reference.operands import ChunkSizes
from harness.reference.picks import reference_picks
from harness.reference.sampling import sample_rows
from harness.reference.selection import judge_selection

NAMES = ("due", "below", "future", "foreign", "missing", "duplicate", "out_of_range")


def assert_as_brute(case, picks):
    counts = judge(case, picks).counts
    for index in range(len(case.table)):
        row_picks = picks[case.table.row[index]].tolist()
        expected = judge_row(case, index, row_picks)
        found = {name: int(counts.of(name)[index]) for name in NAMES}
        found["exact"] = int(counts.of("exact")[index])
        found["exact_or_tie"] = found["exact"] + int(counts.of("tie")[index])
        assert found == expected, f"row {index}, picks {row_picks}, {facts_of(case, index)}"


@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["integers", "zeros", "normal"]),
    sequences=st.lists(st.integers(0, 13), min_size=1, max_size=3).filter(any),
    cp=st.sampled_from([(1, 0), (2, 0), (2, 1)]),
    topk=st.integers(1, 6),
    tail=st.sampled_from([0, 4]),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_counts_equal_brute_force(seed, kind, sequences, cp, topk, tail):
    case = make_case(
        sequences,
        cp_size=cp[0],
        cp_rank=cp[1],
        topk=topk,
        seed=seed,
        kind=kind,
        tail_padding=tail,
    )
    rng = random.Random(seed)
    right = all_right(case, seed)
    assert_as_brute(case, right)
    assert_as_brute(case, scramble(case, right, rng))


# What counts as what, one row at a time.


def test_zero_scores_all_tie():
    case = one_row([-1.0] * 7, topk=3)
    for chosen in itertools.combinations(range(7), 3):
        stats = judge_last(case, chosen)
        assert (stats.exact + stats.tie, stats.num_wrong) == (3, 0)
        assert stats.exact == len({0, 1, 2} & set(chosen))
        assert stats.strict_overlap == stats.exact / 3


def test_ties_at_the_cut_do_not_make_up_for_a_better_key():
    case = one_row([5.0, 0.0, 9.0, 0.0, 0.0, 0.0], topk=3)
    stats = judge_last(case, [1, 3, 4])
    assert (stats.exact, stats.tie, stats.below, stats.missing) == (1, 0, 2, 0)
    assert stats.largest_gap == 9.0
    assert stats.overlap == pytest.approx(1 / 3)
    twin = judge_last(case, [5, 0, 2])
    assert (twin.exact, twin.tie, twin.num_wrong) == (2, 1, 0)


@pytest.mark.parametrize(("step", "tie"), [(2.0**-21, 1), (2.0**-19, 0)])
def test_margin_of_the_number_format(step, tie):
    scores = [1.0, 1.0 - step, 0.25]
    stats = judge_last(one_row(scores, topk=1, exact=False), [1])
    assert (stats.tie, stats.below) == (tie, 1 - tie)
    stats = judge_last(one_row(scores, topk=1, exact=True), [1])
    assert (stats.tie, stats.below) == (0, 1)
    assert stats.largest_gap == step


@pytest.mark.parametrize("long_key", [0, 1])
def test_margin_follows_the_longer_of_the_two_keys(long_key):
    scores = [1.0, 1.0 - 2.0**-18, 0.25]
    norms = [0.0, 0.0, 0.0]
    assert judge_last(one_row(scores, topk=1, exact=False, norms=norms), [1]).below == 1
    norms[2] = 100.0
    assert judge_last(one_row(scores, topk=1, exact=False, norms=norms), [1]).below == 1
    norms[long_key] = 100.0
    assert judge_last(one_row(scores, topk=1, exact=False, norms=norms), [1]).tie == 1


@pytest.mark.parametrize("norms", [[0.0, 100.0, 0.0, 0.0], [100.0, 0.0, 0.0, 0.0]])
def test_margin_does_not_depend_on_which_of_tied_keys_is_at_the_cut(norms):
    case = one_row([1.0, 1.0, 1.0 - 2.0**-18, 0.25], topk=1, exact=False, norms=norms)
    assert judge_last(case, [2]).tie == 1


def test_a_key_within_the_margin_above_the_cut_may_be_left_out():
    scores = [1.0 + 2.0**-21, 1.0, 1.0 - 2.0**-21, 0.25]
    assert judge_last(one_row(scores, topk=2, exact=False), [1, 2]).num_wrong == 0
    stats = judge_last(one_row(scores, topk=2, exact=True), [1, 2])
    assert (stats.exact, stats.below) == (1, 1)


@pytest.mark.parametrize("limit_and_topk", [(3, 5), (5, 5)])
def test_rows_that_see_at_most_topk_keys_are_due_all_of_them(limit_and_topk):
    limit, topk = limit_and_topk
    case = one_row([float(-i) for i in range(limit)], topk=topk)
    stats = judge_last(case, [*range(limit), *[-1] * (topk - limit)])
    assert (stats.due, stats.exact, stats.num_wrong) == (limit, limit, 0)
    assert (stats.rows, stats.rows_exhaustive) == (1, 1)
    stats = judge_last(case, [*range(1, limit), *[-1] * (topk - limit + 1)])
    assert (stats.exact, stats.missing) == (limit - 1, 1)


def test_repeats_and_surplus_slots():
    case = one_row([3.0, 2.0, 1.0, 0.5], topk=2)
    stats = judge_last(case, [0, 0, 0, 1])
    assert (stats.exact, stats.duplicate, stats.missing) == (2, 2, 0)
    stats = judge_last(case, [0, 0, -1, -1])
    assert (stats.exact, stats.duplicate, stats.missing) == (1, 1, 1)
    stats = judge_last(case, [3, 2, 1, 0])
    assert (stats.exact, stats.below, stats.missing) == (2, 2, 0)
    stats = judge_last(case, [1])
    assert (stats.exact, stats.missing) == (1, 1)


@pytest.mark.parametrize("pick", [-2, -(2**31), 8, 2**31 - 1])
def test_out_of_range(pick):
    stats = judge_last(one_row([3.0, 2.0, 1.0, 0.5, 0, 0, 0, 0], topk=2), [0, pick])
    assert (stats.out_of_range, stats.exact, stats.missing) == (1, 1, 1)
    assert stats.num_out_of_bounds == 1


def test_rows_without_any_visible_key_are_due_nothing():
    case = make_case([8], cp_size=2, kv_sequences=[0], topk=2)
    stats = evidence(case, torch.full((4, 2), -1)).total
    assert (stats.rows, stats.due, stats.num_wrong, stats.overlap) == (4, 0, 0, 1.0)
    assert evidence(case, torch.zeros(4, 2, dtype=torch.int64)).total.foreign == 8


# Padding.


def padded_case():
    return make_case([13, 6], cp_size=2, cp_rank=0, topk=3, tail_padding=4)


def test_padding_rows_are_judged_for_bounds_alone():
    case = padded_case()
    padding = torch.nonzero(~case.table.valid).flatten()
    picks = reference_picks(case.operands, case.table, topk=3)
    healthy = evidence(case, picks)
    assert healthy.total.num_wrong == 0
    assert healthy.total.rows == int(case.table.valid.sum())
    for index in padding.tolist():
        row, start, _, length, _ = facts_of(case, index)
        own = picks.clone()
        own[row] = torch.tensor([start + length - 1, start + length - 1, -1])
        assert evidence(case, own).total == healthy.total
        outside = (start - 1) if start else start + length
        for pick, count in ((outside, "foreign"), (case.table.num_keys, "out_of_range")):
            spoiled = picks.clone()
            spoiled[row, 1] = pick
            stats = evidence(case, spoiled).total
            assert stats == dataclasses.replace(healthy.total, **{count: 1})


def test_keys_of_the_tail_are_foreign_to_every_sequence():
    case = padded_case()
    picks = reference_picks(case.operands, case.table, topk=3)
    picks[0, 1] = case.table.num_keys - 1
    assert evidence(case, picks).total.foreign == 1


# What may not change the judgement.


@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["integers", "zeros", "normal"]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_order_of_slots_changes_nothing(seed, kind):
    case = make_case([21, 10], kind=kind, seed=seed, topk=5)
    picks = any_picks(case, seed)
    order = torch.randperm(picks.shape[1], generator=torch.Generator().manual_seed(seed))
    assert evidence(case, picks) == evidence(case, picks[:, order])
    assert evidence(case, picks) == evidence(case, picks.to(torch.int32))


@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["integers", "zeros"]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_order_of_keys_changes_neither_overlap_nor_anything_else(seed, kind):
    case = make_case([18], cp_size=1, kind=kind, seed=seed, topk=4)
    case.table = case.table.take(torch.tensor([17]))
    picks = any_picks(case, seed)[[0]].expand(18, -1).clone()
    before = evidence(case, picks).total
    order = torch.randperm(18, generator=torch.Generator().manual_seed(seed))
    case.operands = dataclasses.replace(case.operands, k=case.operands.k[order])
    inverse = torch.argsort(order)
    moved = torch.where((picks >= 0) & (picks < 18), inverse[picks.clamp(0, 17)], picks)
    assert whole(evidence(case, moved).total) == whole(before)


@given(seed=st.integers(0, 10**6), data=st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_swapping_tied_keys_changes_nothing(seed, data):
    case = make_case([24], cp_size=1, seed=seed, topk=6)
    picks = all_right(case)
    row = data.draw(st.integers(7, 23))
    scores = case.scores[row]
    slot = data.draw(st.integers(0, 5))
    twins = [
        key
        for key in range(row + 1)
        if scores[key] == scores[int(picks[row, slot])] and key not in picks[row].tolist()
    ]
    before = evidence(case, picks).total
    assert before.num_wrong == 0
    for key in twins:
        swapped = picks.clone()
        swapped[row, slot] = key
        assert whole(evidence(case, swapped).total) == whole(before)


@pytest.mark.parametrize("kind", ["integers", "zeros", "normal"])
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_chunk_sizes_change_nothing(kind, dtype):
    case = make_case([150, 60], topk=7, kind=kind, dtype=dtype, seed=3)
    picks = any_picks(case, 3)
    expected = evidence(case, picks)
    for chunks in (ChunkSizes(rows=1), ChunkSizes(rows=13), ChunkSizes(score_bytes=1000)):
        case.operands = dataclasses.replace(case.operands, chunks=chunks)
        found = evidence(case, picks)
        if kind == "normal":  # scores may differ in the last bit, and so may the gap
            assert found.total.largest_gap == pytest.approx(expected.total.largest_gap)
            total = dataclasses.replace(found.total, largest_gap=expected.total.largest_gap)
            assert total == expected.total
            assert found.by_distance == expected.by_distance
        else:
            assert found == expected


@pytest.mark.parametrize("kind", ["integers", "normal"])
def test_fp64_judges_as_fp32(kind):
    case = make_case([200, 56], topk=16, kind=kind, heads=8, dim=32, seed=1)
    picks = reference_picks(case.operands, case.table, topk=16)
    in_fp64 = dataclasses.replace(case.operands, dtype="fp64")
    spoiled = any_picks(case, 1)
    for some in (picks, spoiled, reference_picks(in_fp64, case.table, topk=16)):
        found = [
            judge_selection(some, operands, case.table, topk=16).evidence(SITE, stage="final")
            for operands in (case.operands, in_fp64)
        ]
        assert [e.reference_dtype for e in found] == ["fp32", "fp64"]
        first, second = (dataclasses.replace(whole(e.total), largest_gap=0.0) for e in found)
        assert first == second
    assert judge(case, picks).right.all()


def test_a_sample_is_judged_like_the_same_rows_of_the_whole():
    case = make_case([300, 100], topk=9, seed=2)
    picks = any_picks(case, 2)
    full = judge(case, picks)
    sample = sample_rows(case.table, 60, seed=0, topk=9)
    some = judge(case, picks, sample)
    assert torch.equal(some.counts.table, full.counts.table[sample.row])
    assert full.evidence(SITE, stage="final").rows_sampled is None
    assert some.evidence(SITE, stage="final").rows_sampled == int(sample.valid.sum())


# Arguments.


def test_values_without_an_order_are_refused():
    case = make_case([16])
    for name in ("q", "k", "w"):
        spoiled = getattr(case.operands, name).clone()
        spoiled.view(-1)[3] = torch.nan
        with pytest.raises(ValueError, match=f"{name} holds NaN or infinite values"):
            dataclasses.replace(case.operands, **{name: spoiled})


def test_overflowing_scores_are_refused_in_fp32_and_judged_in_fp64():
    case = make_case([16], topk=2)
    huge = dataclasses.replace(
        case.operands,
        q=torch.full_like(case.operands.q, 2.0**100),
        k=torch.full_like(case.operands.k, 2.0**100),
        w=torch.ones_like(case.operands.w),
    )
    picks = torch.full((8, 2), -1)
    with pytest.raises(ValueError, match="fp64"):
        judge_selection(picks, huge, case.table, topk=2)
    in_fp64 = dataclasses.replace(huge, dtype="fp64")
    assert judge_selection(picks, in_fp64, case.table, topk=2).counts.of("missing").sum() == 15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"picks": torch.zeros(3, 2, dtype=torch.int64)}, r"picks must be \(8 local rows, slots\)"),
        ({"picks": torch.zeros(8, 2)}, "integer key ids, found torch.float32"),
        ({"topk": 0}, "topk must be at least 1, found 0"),
        ({"cut": "q"}, "q has 7 rows but the rank has 8"),
        ({"cut": "k"}, "k has 15 keys but the pack has 16"),
    ],
)
def test_arguments_that_do_not_belong_together_are_refused(change, message):
    case = make_case([16])
    operands = case.operands
    if change.get("cut") == "q":
        operands = dataclasses.replace(operands, q=operands.q[1:], w=operands.w[1:])
    if change.get("cut") == "k":
        operands = dataclasses.replace(operands, k=operands.k[1:])
    picks = change.get("picks", torch.full((8, 2), -1))
    with pytest.raises(ValueError, match=message):
        judge_selection(picks, operands, case.table, topk=change.get("topk", 2))
    with pytest.raises(ValueError, match="reference dtype must be one of"):
        dataclasses.replace(case.operands, dtype="bf16")
    with pytest.raises(ValueError, match="chunk sizes must be at least 1"):
        ChunkSizes(rows=0)


def test_a_rank_without_rows_has_nothing_to_be_judged():
    case = make_case([0], cp_size=1)
    no_picks = torch.zeros(0, 0, dtype=torch.int64)
    assert judge_selection(no_picks, case.operands, case.table, topk=2).counts.table.shape[0] == 0
    with pytest.raises(ValueError, match="picks must be"):
        judge_selection(torch.zeros(1, 0), case.operands, case.table, topk=2)
