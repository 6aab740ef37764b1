"""The behaviour of half the heads explains such picks, and no others."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.layout import pack_sequences
from harness.reference.half_heads import HALF_HEADS, half_heads
from harness.reference.operands import Operands
from harness.reference.picks import reference_picks
from harness.reference.rows import rows_of_rank
from harness.reference.selection import judge_selection
from harness.reference.site import Site

TOPK = 4
SITE = Site(global_rank=0, cp_rank=1, microbatch=0, layer=1, seed=0)
TABLE = rows_of_rank(pack_sequences([64, 32], cp_size=2), 1)


def operands() -> Operands:
    generator = torch.Generator().manual_seed(3)
    return Operands(
        q=torch.randn(TABLE.num_local_rows, 8, 16, generator=generator),
        k=torch.randn(96, 16, generator=generator),
        w=torch.randn(TABLE.num_local_rows, 8, generator=generator),
        dtype="fp32",
    )


def evidence_of(picks: torch.Tensor, of: Operands):
    right = judge_selection(picks, of, TABLE, topk=TOPK).right
    return half_heads(picks, of, TABLE, right, topk=TOPK, site=SITE)


def test_picks_by_half_of_the_heads_are_explained():
    whole = operands()
    half = replace(whole, q=whole.q[:, :4], w=whole.w[:, :4])
    found = evidence_of(reference_picks(half, TABLE, topk=TOPK), whole)
    assert found.name == HALF_HEADS and found.holds and found.rows == int(TABLE.valid.sum())
    assert found.rows_telling > 0


def test_right_picks_are_not():
    whole = operands()
    found = evidence_of(reference_picks(whole, TABLE, topk=TOPK), whole)
    assert not found.holds and found.rows_telling == 0


def test_one_other_row_is_not_explained():
    whole = operands()
    half = replace(whole, q=whole.q[:, :4], w=whole.w[:, :4])
    picks = reference_picks(half, TABLE, topk=TOPK)
    row = int((TABLE.limits * TABLE.valid).argmax())
    picks[row] = reference_picks(whole, TABLE, topk=TOPK)[row]
    found = evidence_of(picks, whole)
    assert found.rows - found.rows_matching == 1
