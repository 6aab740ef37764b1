"""Picks of a scorer that sums over half of the indexer's heads.

What a caller gets that hands over one tensor-parallel rank's share of the heads, although every
rank holds the indexer whole: selections that look healthy, and are those of another indexer.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from harness.record.selection import BehaviourEvidence
from harness.reference.operands import Operands
from harness.reference.rows import RowTable
from harness.reference.selection import judge_selection
from harness.reference.site import Site

HALF_HEADS = "half_heads"
"""Name of the behaviour, as under ``as`` in a ``known`` rule."""


def half_heads(
    picks: Tensor, operands: Operands, table: RowTable, right: Tensor, *, topk: int, site: Site
) -> BehaviourEvidence:
    """Hold picks against the selection that the first half of the heads makes.

    Args:
        picks: (local rows, P) packed key ids, -1 for an empty slot.
        operands: Of all heads.
        table: Rows to check.
        right: (R,) bool, rows whose picks are right by all heads.
        topk: Keys due per row at most.
        site: Where the record belongs.
    """
    half = operands.q.size(1) // 2
    fewer = replace(operands, q=operands.q[:, :half], w=operands.w[:, :half])
    matching = judge_selection(picks, fewer, table, topk=topk).right & table.valid
    return BehaviourEvidence(
        **site.fields(),
        name=HALF_HEADS,
        rows=int(table.valid.sum()),
        rows_matching=int(matching.sum()),
        rows_telling=int((~right & table.valid).sum()),
        first_mismatch=None,
    )
