"""Exact picks that the kernel took blindly earn no strict overlap; ranked ones do."""

from __future__ import annotations

import torch

from harness.layout import pack_sequences
from harness.reference.operands import Operands
from harness.reference.rows import rows_of_rank
from harness.reference.selection import judge_selection
from harness.reference.site import Site


def judged(windows):
    table = rows_of_rank(pack_sequences([8], cp_size=1), 0)
    # One head, key i scores i: the two best keys of row r are r - 1 and r.
    q = torch.ones(8, 1, 1)
    operands = Operands(q=q, k=torch.arange(8.0).view(8, 1), w=torch.ones(8, 1))
    picks = torch.stack([torch.arange(8) - 1, torch.arange(8)], dim=1)
    found = judge_selection(picks, operands, table, topk=2, windows=windows)
    evidence = found.evidence(Site(global_rank=0, cp_rank=0), stage="final")
    bands = [part.stats for part in evidence.by_distance]
    assert sum(band.exact for band in bands) == evidence.total.exact
    assert sum(band.unranked for band in bands) == evidence.total.unranked
    return evidence.total


def test_without_windows_every_exact_pick_is_ranked():
    total = judged(None)
    assert (total.exact, total.unranked) == (15, 0)
    assert total.strict_overlap == total.overlap == 1.0


def test_full_windows_change_nothing():
    assert judged(torch.arange(1, 9)).unranked == 0


def test_picks_past_the_window_are_exact_but_unranked():
    total = judged(torch.ones(8, dtype=torch.int64))
    # Only key 0 was scored: row 0 and row 1 hold it, every other pick was taken blindly.
    assert (total.exact, total.unranked) == (15, 13)
    assert total.overlap == 1.0
    assert total.strict_overlap == 2 / 15
