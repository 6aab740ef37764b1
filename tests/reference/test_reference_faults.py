"""Every check of a selection can fail: each planted fault shows, and its healthy twin does not."""

from __future__ import annotations

import pytest
import torch
from reference_brute import all_right, make_case

from harness.record.selection import OverlapStats
from harness.reference.faults import PLANTED_FAULTS
from harness.reference.picks import reference_picks
from harness.reference.selection import judge_selection
from harness.reference.site import Site

SITE = Site(global_rank=0, cp_rank=0)


def total(case, picks):
    judgement = judge_selection(picks, case.operands, case.table, topk=case.topk)
    return judgement.evidence(SITE, stage="final").total


@pytest.mark.parametrize("cp_rank", [0, 1])
@pytest.mark.parametrize("name", PLANTED_FAULTS)
def test_planted_fault_shows_and_its_healthy_twin_does_not(name, cp_rank):
    case = make_case(
        [60, 33], cp_rank=cp_rank, topk=5, kind="normal", heads=4, dim=8, tail_padding=4
    )
    picks = reference_picks(case.operands, case.table, topk=5)
    healthy = total(case, picks)
    assert healthy.num_wrong == 0
    assert healthy.exact == healthy.due > 0
    fault = PLANTED_FAULTS[name]
    spoiled = fault.plant(picks, case.operands, case.table)
    assert torch.equal(picks, reference_picks(case.operands, case.table, topk=5))
    rows = int((spoiled != picks).any(1).sum())
    found = total(case, spoiled)
    assert getattr(found, fault.count) == rows > 0
    assert found.overlap < 1


def test_every_way_to_be_wrong_has_a_planted_fault():
    wrong = {
        name
        for name in OverlapStats.__slots__
        if name in ("below", "future", "foreign", "missing", "duplicate", "out_of_range")
    }
    assert {fault.count for fault in PLANTED_FAULTS.values()} == wrong
    ones = OverlapStats(rows=1, **dict.fromkeys(wrong, 1))
    assert ones.num_wrong == len(wrong)


@pytest.mark.parametrize("kind", ["integers", "zeros"])
def test_reference_picks_are_the_lower_of_tied_keys(kind):
    case = make_case([150, 20], kind=kind, topk=6, seed=4)
    found = reference_picks(case.operands, case.table, topk=6)
    expected = all_right(case)
    for index in torch.nonzero(case.table.valid).flatten().tolist():
        assert set(found[index].tolist()) == set(expected[index].tolist())
    assert (found[~case.table.valid] == -1).all()
