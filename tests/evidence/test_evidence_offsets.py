"""Offsets due, implied and passed, for batches, chunks of a half, and THD segments."""

from __future__ import annotations

import torch

from harness.evidence.offsets import offset_evidence
from harness.layout import pack_sequences
from harness.production.recorder import Recorder
from harness.reference.rows import rows_of_rank
from harness.reference.site import Site

SITE = Site(global_rank=1, cp_rank=1, layer=1)


def recorded(*calls: dict) -> Recorder:
    recorder = Recorder()
    for arguments in calls:
        recorder.record("indexer_forward", "modelled", None, arguments, lambda: {"scores": None})
    return recorder


def bshd(rows: int, keys: int, **more) -> dict:
    return {"q": torch.zeros(1, rows, 1, 1), "k": torch.zeros(1, keys, 1, 1), "ratio": 1} | more


def test_chunks_of_both_halves():
    # cp 2, one sequence of 16: rank 1 holds positions 4..7 and 8..11; two chunks of two rows each.
    table = rows_of_rank(pack_sequences([16], cp_size=2), 1)
    calls = [bshd(2, 6), bshd(2, 8), bshd(2, 10), bshd(2, 12)]
    found = list(offset_evidence(recorded(*calls), table, SITE))
    assert [e.due for e in found] == [(4,), (6,), (8,), (10,)]
    assert [e.cropped for e in found] == [(4,), (6,), (8,), (10,)]
    assert all(e.forgotten and not e.right for e in found)


def test_thd_segments_leave_out_empty_ones():
    table = rows_of_rank(pack_sequences([8, 0, 16], cp_size=2), 1)
    arguments = {
        "q": torch.zeros(12, 1, 1),
        "k": torch.zeros(30, 1, 1),
        "cu_seqlens_q": torch.tensor([0, 2, 4, 4, 4, 8, 12]),
        "cu_seqlens_k": torch.tensor([0, 4, 10, 10, 10, 18, 30]),
        "q_causal_offsets": torch.tensor([2, 4, 0, 0, 4, 8], dtype=torch.int32),
    }
    (found,) = offset_evidence(recorded(arguments), table, SITE)
    assert found.due == found.cropped == found.given == (2, 4, 4, 8)
    assert found.right
    assert not found.forgotten


def test_a_wrong_offset_is_told_from_a_forgotten_one():
    table = rows_of_rank(pack_sequences([16], cp_size=2), 1)
    wrong = bshd(4, 8, q_causal_offsets=torch.tensor([3], dtype=torch.int32))
    (found,) = offset_evidence(recorded(wrong), table, SITE)
    assert (found.given, found.due) == ((3,), (4,))
    assert not found.right
    assert not found.forgotten


def test_nothing_is_due_to_a_chunk_at_the_start():
    table = rows_of_rank(pack_sequences([16], cp_size=1), 0)
    (found,) = offset_evidence(recorded(bshd(16, 16)), table, SITE)
    assert found.right
    assert not found.forgotten
