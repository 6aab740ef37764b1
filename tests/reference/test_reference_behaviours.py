"""Predictions of faulty behaviours against simulated kernels, and what they must not explain."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_brute import all_right, cut_of, facts_of, make_case, right_picks, top_left_kernel

from harness.record.codec import dumps, loads
from harness.record.selection import BehaviourEvidence
from harness.reference import behaviours
from harness.reference.behaviours import check_behaviour, chunk_rows
from harness.reference.operands import ChunkSizes
from harness.reference.picks import reference_picks
from harness.reference.sampling import sample_rows
from harness.reference.site import Site

SITE = Site(global_rank=2, cp_rank=1)
NAME = "chunk_local_window"


def check(case, picks, **options):
    table = options.pop("table", case.table)
    return check_behaviour(NAME, picks, case.operands, table, topk=case.topk, **options)


def evidence(case, picks, **options):
    return check(case, picks, **options).evidence(SITE)


@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["integers", "zeros", "normal"]),
    sequences=st.lists(st.integers(0, 40), min_size=1, max_size=3).filter(any),
    cp=st.sampled_from([(1, 0), (2, 0), (2, 1), (4, 3)]),
    topk=st.integers(1, 9),
    rows_per_call=st.sampled_from([None, 3, 5]),
    masked=st.sampled_from(["kept", "dropped"]),
)
@settings(max_examples=120, deadline=None, derandomize=True)
def test_explains_every_top_left_kernel(seed, kind, sequences, cp, topk, rows_per_call, masked):
    case = make_case(sequences, cp_size=cp[0], cp_rank=cp[1], topk=topk, seed=seed, kind=kind)
    picks = top_left_kernel(case, rows_per_call=rows_per_call, masked=masked, seed=seed)
    calls = chunk_rows(case.table, rows_per_call=rows_per_call)
    found = evidence(case, picks, row_in_chunk=calls, masked_keys=masked)
    assert found.holds, f"row {found.first_mismatch}"
    assert found.rows == int(case.table.valid.sum())
    assert found.rows_beyond_window == 0
    assert found.rows_exhaustive == int((case.table.valid & (case.table.limits <= topk)).sum())
    if masked == "kept":
        assert found.rows_exhaustive_exact == found.rows_exhaustive


def long_case(**options):
    defaults = {"cp_rank": 1, "topk": 6, "kind": "normal", "heads": 4, "dim": 8, "seed": 0}
    return make_case([96, 40, 8], **(defaults | options))


@pytest.mark.parametrize("masked", ["kept", "dropped"])
def test_does_not_explain_a_healthy_kernel(masked):
    case = long_case()
    picks = reference_picks(case.operands, case.table, topk=6)
    found = check(case, picks, masked_keys=masked)
    record = found.evidence(SITE)
    assert not record.holds
    assert record.rows_telling > record.rows / 2
    assert not (found.matching & found.telling).any()
    assert found.matching[~found.telling & case.table.valid].all()
    assert record.rows_beyond_window > 0
    assert record.rows_exhaustive_exact == record.rows_exhaustive == 4
    assert record.first_mismatch == int(case.table.row[~found.matching].min())


def test_right_and_faulty_agree_where_the_window_is_the_limit():
    case = make_case([64], cp_size=1, topk=6, kind="normal", heads=4, dim=8)
    for picks in (reference_picks(case.operands, case.table, topk=6), top_left_kernel(case)):
        found = evidence(case, picks)
        assert found.holds
        assert found.rows_telling == 0


def mutations(case, picks, windows):
    """Yield (name, spoiled picks) of one row whose window ranks, and of one it fills up."""
    table = case.table
    ranked = torch.nonzero((windows >= 6) & (table.limits > windows) & table.valid).flatten()
    filled = torch.nonzero((windows < 5) & (table.limits > 6) & table.valid).flatten()
    for label, row in (("ranked", int(ranked[-1])), ("filled", int(filled[-1]))):
        _, start, limit, length, _ = facts_of(case, row)
        own = picks[row].tolist()
        inside = next(slot for slot in range(6) if own[slot] < start + windows[row])
        for name, value in {
            "missing": -1,
            "duplicate": own[(inside + 1) % 6],
            "future": start + limit,
            "foreign": start - 1 if start else start + length,
            "out_of_range": table.num_keys,
            "beyond_window": next(
                k for k in range(start + int(windows[row]), start + limit) if k not in own
            ),
        }.items():
            spoiled = picks.clone()
            spoiled[row, inside] = value
            yield f"{label} {name}", row, spoiled


def test_one_mutated_pick_is_not_explained():
    case = long_case()
    picks = top_left_kernel(case)
    assert evidence(case, picks).holds
    windows = torch.minimum(case.table.row_in_segment + 1, case.table.limits)
    names = []
    for name, row, spoiled in mutations(case, picks, windows):
        found = evidence(case, spoiled)
        assert (found.rows - found.rows_matching, found.first_mismatch) == (1, row), name
        assert found.rows_beyond_window == (name in ("ranked beyond_window", "ranked future")), name
        names.append(name)
    assert len(names) == 12


def test_a_worse_key_of_the_window_is_not_explained():
    case = long_case()
    picks = top_left_kernel(case)
    row = int(torch.nonzero(case.table.row_in_segment == 15).flatten()[0])
    _, start, _, _, _ = facts_of(case, row)
    _, _, above, level = cut_of(case, row, limit=16)
    worst = min(set(range(16)) - above - level, key=lambda key: case.scores[row][start + key])
    picks[row, 0] = start + worst
    found = evidence(case, picks)
    assert (found.rows - found.rows_matching, found.first_mismatch) == (1, row)


def test_ties_inside_the_window_are_understood():
    case = make_case([96], cp_rank=1, topk=6, kind="zeros")
    rng = random.Random(1)
    picks = top_left_kernel(case)
    for row in range(12, 24):
        picks[row] = torch.tensor(rng.sample(range(row + 1), 6))
    assert evidence(case, picks).holds
    picks[20, 0] = 30
    assert evidence(case, picks).first_mismatch == 20


def test_kept_and_dropped_are_told_apart():
    case = long_case()
    kept, dropped = (top_left_kernel(case, masked=masked) for masked in ("kept", "dropped"))
    assert evidence(case, kept, masked_keys="kept").holds
    assert evidence(case, dropped, masked_keys="dropped").holds
    assert not evidence(case, kept, masked_keys="dropped").holds
    assert not evidence(case, dropped, masked_keys="kept").holds
    record = evidence(case, dropped, masked_keys="dropped")
    assert record.rows_exhaustive_exact < record.rows_exhaustive == 4


def test_the_size_of_a_call_matters():
    case = long_case()
    picks = top_left_kernel(case, rows_per_call=5)
    assert evidence(case, picks, row_in_chunk=chunk_rows(case.table, rows_per_call=5)).holds
    assert not evidence(case, picks).holds


def test_calls_of_one_segment_may_be_longer_than_those_of_another():
    case = make_case([24], cp_rank=0)
    assert chunk_rows(case.table).tolist() == [*range(6), *range(6)]
    assert chunk_rows(case.table, rows_per_call=4).tolist() == [0, 1, 2, 3, 0, 1] * 2
    per_segment = chunk_rows(case.table, rows_per_call=[5, 2]).tolist()
    assert per_segment == [0, 1, 2, 3, 4, 0, 0, 1, 0, 1, 0, 1]


def test_surplus_slots_are_not_explained():
    case = long_case()
    picks = torch.cat((top_left_kernel(case), torch.full((len(case.table), 1), -1)), dim=1)
    assert evidence(case, picks).holds
    row = int(torch.nonzero(case.table.row_in_segment == 15).flatten()[0])
    for surplus in (case.table.num_keys, int(picks[row, 0])):
        spoiled = picks.clone()
        spoiled[row, -1] = surplus
        assert evidence(case, spoiled).first_mismatch == row


@pytest.mark.parametrize("masked", ["kept", "dropped"])
def test_rows_tell_only_where_no_right_selection_would_match(masked):
    case = long_case(kind="integers")
    found = check(case, all_right(case), masked_keys=masked)
    windows = torch.minimum(case.table.row_in_segment + 1, case.table.limits)
    for index in range(len(case.table)):
        _, start, limit, _, valid = facts_of(case, index)
        window = int(windows[index])
        telling = bool(valid) and masked == "dropped" and window < min(limit, case.topk)
        if valid and limit > case.topk:
            _, _, above, level = cut_of(case, index)
            keys = right_picks(case, index, limit=window)
            predicted = {key - start for key in keys if key >= 0}
            level_places = case.topk - len(above)
            lost = window >= case.topk and not above <= predicted
            too_many = len(predicted & level) > level_places
            telling |= lost or too_many or not predicted <= above | level
        assert bool(found.telling[index]) == telling, index


def test_chunk_sizes_and_dtype_change_nothing():
    case = long_case()
    picks = top_left_kernel(case)
    picks[10, 0] = 0
    expected = evidence(case, picks)
    assert not expected.holds
    for changes in ({"chunks": ChunkSizes(rows=7)}, {"dtype": "fp64"}):
        case.operands = dataclasses.replace(case.operands, **changes)
        assert evidence(case, picks) == expected


def test_a_sample_is_checked_like_the_same_rows_of_the_whole():
    case = long_case()
    picks = reference_picks(case.operands, case.table, topk=6)
    full = check(case, picks)
    sample = sample_rows(case.table, 40, seed=0, topk=6)
    some = check(case, picks, table=sample, row_in_chunk=chunk_rows(case.table))
    assert len(sample) < len(case.table)
    assert torch.equal(some.matching, full.matching[sample.row])
    assert torch.equal(some.telling, full.telling[sample.row])
    with pytest.raises(ValueError, match="all rows of the rank, found a sample"):
        chunk_rows(sample)


def test_padding_rows_are_not_checked():
    case = make_case([13], cp_rank=0, topk=3, tail_padding=4)
    picks = top_left_kernel(case)
    picks[~case.table.valid] = 7
    found = evidence(case, picks)
    assert found.holds
    assert found.rows == int(case.table.valid.sum()) < len(case.table)


def test_record_survives_json():
    case = long_case()
    record = evidence(case, reference_picks(case.operands, case.table, topk=6))
    assert loads(BehaviourEvidence, dumps(record)) == record
    assert (record.name, record.global_rank, record.cp_rank) == (NAME, 2, 1)


def test_further_behaviours_are_a_table_entry(monkeypatch):
    case = long_case()
    whole = {"right": lambda table, row_in_chunk: table.limits}
    monkeypatch.setattr(behaviours, "BEHAVIOURS", behaviours.BEHAVIOURS | whole)
    picks = reference_picks(case.operands, case.table, topk=6)
    found = check_behaviour("right", picks, case.operands, case.table, topk=6).evidence(SITE)
    assert found.holds
    assert found.rows_telling == 0
    picks = top_left_kernel(case)
    assert not check_behaviour("right", picks, case.operands, case.table, topk=6).matching.all()


def test_unknown_names_and_wrong_chunks_are_refused():
    case = long_case()
    picks = top_left_kernel(case)
    with pytest.raises(ValueError, match="did you mean 'chunk_local_window'"):
        check_behaviour("chunk_local_windw", picks, case.operands, case.table, topk=6)
    with pytest.raises(ValueError, match="one entry for each of the 72 local rows"):
        check(case, picks, row_in_chunk=torch.zeros(3, dtype=torch.int64))
