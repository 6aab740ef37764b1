"""Right picks: the reference's own selection, for tests, planted faults and demonstrations."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.reference.cut import cut_rows
from harness.reference.operands import Operands, scored_rows
from harness.reference.rows import RowTable, parts


@torch.no_grad()
def reference_picks(operands: Operands, table: RowTable, *, topk: int) -> Tensor:
    """Return the reference selection of a rank: of exactly equal scores, the lower keys.

    Args:
        operands: q, k and w of the rank.
        table: The rows to select for.
        topk: Keys due per row at most.

    Returns:
        (local rows, topk) int64 packed key ids, ascending, then -1; all -1 for padding rows and
        for rows that are not in the table.

    Raises:
        ValueError: when operands and table do not belong together.
    """
    operands.check_table(table)
    device = operands.q.device
    picks = torch.full((table.num_local_rows, topk), -1, dtype=torch.int64, device=device)
    slots = torch.arange(topk)
    for index in parts(table.valid & (table.limits <= topk), 512):
        rows = table.take(index)
        keys = rows.starts.unsqueeze(1) + slots
        keys = torch.where(slots < rows.limits.unsqueeze(1), keys, -1)
        picks[rows.row.to(device)] = keys.to(device)
    ranked = (table.valid & (table.limits > topk)).nonzero().flatten()
    for chunk in scored_rows(operands, table, ranked):
        cut = cut_rows(chunk, chunk.scores, topk, operands.margin_unit)
        starts = table.starts[chunk.index].to(device).unsqueeze(1)
        picks[table.row[chunk.index].to(device)] = cut.keys + starts
    return picks
