"""What a judgement becomes as a record: slices, distance bands and worst rows."""

from __future__ import annotations

import torch
from reference_brute import any_picks, evidence, judge, make_case, one_row

from harness.record.codec import dumps, loads
from harness.record.selection import OverlapStats, SelectionEvidence
from harness.reference.picks import reference_picks


def test_slices_sum_up_to_the_total():
    case = make_case([150, 60], topk=7, tail_padding=4, seed=5)
    found = evidence(case, any_picks(case, 5))
    total = found.total
    for slices in (found.by_sequence, found.by_half):
        assert sum((s.stats for s in slices), start=OverlapStats(rows=0)) == total
    assert [s.name for s in found.by_half] == ["front", "back", "tail padding"]
    assert [s.name for s in found.by_sequence] == ["tail padding", "sequence 0", "sequence 1"]
    bands = sum((s.stats for s in found.by_distance), start=OverlapStats(rows=0))
    assert (bands.due, bands.exact, bands.tie) == (total.due, total.exact, total.tie)
    assert bands.missing == total.below + total.missing


def test_bands_tell_at_which_distance_keys_were_lost():
    case = one_row([float(i) for i in range(40)], topk=8)
    picks = torch.full((40, 8), -1)
    picks[-1] = torch.tensor([39, 38, 37, 36, 0, 1, 2, 3])
    bands = {s.name: s.stats for s in evidence(case, picks).by_distance}
    assert {name: (s.rows, s.due, s.exact, s.missing) for name, s in bands.items()} == {
        "distance 0": (1, 1, 1, 0),
        "distance 1": (1, 1, 1, 0),
        "distance 2..3": (1, 2, 2, 0),
        "distance 4..7": (1, 4, 0, 4),
    }


def test_many_sequences_become_the_worst_ones_and_the_others():
    case = make_case([4] * 100, cp_size=1, topk=2)
    picks = reference_picks(case.operands, case.table, topk=2)
    picks[4 * 90, 1] = case.table.num_keys
    slices = evidence(case, picks).by_sequence
    assert len(slices) == 64
    assert slices[-1].name == "37 other sequences"
    assert [s.name for s in slices if s.stats.num_wrong] == ["sequence 90"]
    assert sum((s.stats for s in slices), start=OverlapStats(rows=0)).rows == 400


def test_worst_rows_come_out_of_bounds_first_and_in_full():
    case = make_case([64], cp_size=2, cp_rank=0, topk=4, kind="normal", heads=4, dim=8, seed=1)
    picks = reference_picks(case.operands, case.table, topk=4)
    right = picks.clone()
    picks[20] = -1
    picks[30, :2] = -1
    picks[25, 0] = 63
    for row in (5, 6, 7, 8):
        picks[row, 3] = -1
    found = evidence(case, picks)
    assert [f.row for f in found.worst_rows] == [25, 20, 30, 5]
    first = found.worst_rows[0]
    assert (first.position, first.sequence, first.limit) == (57, 0, 58)
    assert first.wrong == (63,)
    assert first.due == (int(right[25, 0]),)
    assert first.picked == tuple(sorted(picks[25].tolist()))
    assert found.worst_rows[1].due == tuple(right[20].tolist())
    assert evidence(case, right).worst_rows == ()


def test_a_key_in_whose_place_a_tie_stands_is_not_shown_as_due():
    case = one_row([5.0, 0.0, 0.0, 0.0, 0.0], topk=3)
    picks = torch.full((5, 3), -1)
    picks[-1] = torch.tensor([0, 4, -1])
    found = evidence(case, picks)
    assert (found.total.exact, found.total.tie, found.total.missing) == (1, 1, 1)
    assert [(f.picked, f.wrong, f.due) for f in found.worst_rows] == [((0, 4), (), (2,))]


def test_record_survives_json_and_says_where_it_is_from():
    case = make_case([40], seed=1)
    record = evidence(case, any_picks(case, 1))
    assert loads(SelectionEvidence, dumps(record)) == record
    assert (record.global_rank, record.microbatch, record.layer, record.seed) == (1, 2, 3, 4)
    assert (record.stage, record.topk, record.reference_dtype) == ("final", 4, "fp32")


def test_exhaustive_rows_exact_can_hold_and_fail():
    case = make_case([40], topk=6, seed=1)
    picks = reference_picks(case.operands, case.table, topk=6)
    assert judge(case, picks).exhaustive.sum() == 6
    assert judge(case, picks).exhaustive_rows_exact
    ranked_only = picks.clone()
    ranked_only[6:] = -1
    assert judge(case, ranked_only).exhaustive_rows_exact
    picks[3, 0] = -1
    assert not judge(case, picks).exhaustive_rows_exact
