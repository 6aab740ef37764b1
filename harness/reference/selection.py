"""Judge the selected keys of a rank against the exact reference, ties understood.

``judge_selection`` is the entry; the rules per pick are in ``marks``, the reference sets in
``cut``. No full score matrix is ever held.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.record.selection import RowFinding, SelectionEvidence
from harness.reference.bands import Bands
from harness.reference.cut import cut_rows
from harness.reference.findings import WorstRows
from harness.reference.marks import (
    Judged,
    judge_exhaustive,
    judge_slots,
    sort_slots,
)
from harness.reference.operands import Operands, scored_rows
from harness.reference.rows import RowTable, parts
from harness.reference.site import Site
from harness.reference.tally import RowCounts, by_half, by_sequence, total

_EXHAUSTIVE_ROWS = 512
"""Rows due all their keys, judged at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """Picks of the rows of a table, judged.

    Attributes:
        table: The rows, in the order of ``counts``.
        topk: Keys due per row at most.
        reference_dtype: ``fp32`` or ``fp64``.
        counts: Per row.
        bands: By distance.
        worst_rows: Up to four rows in full.
    """

    table: RowTable
    topk: int
    reference_dtype: str
    counts: RowCounts
    bands: Bands
    worst_rows: tuple[RowFinding, ...]

    @property
    def right(self) -> Tensor:
        """(R,) bool, rows with nothing wrong and nothing missing."""
        return self.counts.num_wrong == 0

    @property
    def exhaustive(self) -> Tensor:
        """(R,) bool, valid rows that may see at most topk keys."""
        return self.table.valid & (self.table.limits <= self.topk)

    @property
    def exhaustive_rows_exact(self) -> bool:
        """Whether every row whose limit is at most topk picked exactly its visible keys.

        The invariant holds for every alignment of the kernel's causal mask, known faults included,
        because such rows are never ranked.
        """
        return bool(self.right[self.exhaustive].all())

    def evidence(self, site: Site, *, stage: str) -> SelectionEvidence:
        """Return the record of this judgement.

        Args:
            site: Rank, microbatch, layer and seed of the picks.
            stage: ``wrapper`` or ``final``.
        """
        stats = total(self.counts, self.table, self.exhaustive)
        return SelectionEvidence(
            **site.fields(),
            stage=stage,
            topk=self.topk,
            reference_dtype=self.reference_dtype,
            total=stats,
            by_sequence=by_sequence(self.counts, self.table, self.exhaustive),
            by_half=by_half(self.counts, self.table, self.exhaustive),
            by_distance=self.bands.slices(),
            worst_rows=self.worst_rows,
            rows_sampled=stats.rows if self.table.is_sample else None,
        )


@torch.no_grad()
def judge_selection(
    picks: Tensor,
    operands: Operands,
    table: RowTable,
    *,
    topk: int,
    windows: Tensor | None = None,
) -> Judgement:
    """Judge picks against the exact reference.

    Args:
        picks: (local rows, P) integer key ids in packed order over the whole pack, -1 for an empty
            slot, in any order; P need not be topk.
        operands: q, k and w of the rank.
        table: The rows to judge: ``rows_of_rank``, or a sample of it.
        topk: Keys due per row, or all visible ones where they are fewer.
        windows: (local rows,) int64, keys of its sequence that the kernel scored for each local
            row. Exact picks past it count as ``unranked``: the kernel took them blindly.

    Raises:
        ValueError: when picks, operands and table do not belong together.
    """
    picks = check_picks(picks, operands, table, topk)
    verdict = _Verdict(table, topk, windows)
    plain = ~table.valid | (table.limits <= topk)
    for index in parts(plain, _EXHAUSTIVE_ROWS):
        rows = table.take(index)
        slots = sort_slots(picks_of(picks, rows), rows)
        limits = torch.where(rows.valid, rows.limits, 0).to(picks.device).unsqueeze(1)
        judged, due = judge_exhaustive(slots, limits, max(1, int(limits.max())))
        verdict.add(index, judged, due, exhaustive=True)
    for chunk in scored_rows(operands, table, (~plain).nonzero().flatten()):
        rows = table.take(chunk.index)
        cut = cut_rows(chunk, chunk.scores, topk, operands.margin_unit)
        slots = sort_slots(picks_of(picks, rows), rows)
        judged = judge_slots(slots, chunk, cut, operands.margin_unit)
        verdict.add(chunk.index, judged, cut.keys, exhaustive=False)
    return Judgement(
        table=table,
        topk=topk,
        reference_dtype=operands.dtype,
        counts=verdict.counts,
        bands=verdict.bands,
        worst_rows=verdict.worst.findings(),
    )


def check_picks(picks: Tensor, operands: Operands, table: RowTable, topk: int) -> Tensor:
    """Return the picks on the device of the operands.

    Raises:
        ValueError: unless picks, operands and table are of the same rows and keys.
    """
    operands.check_table(table)
    if topk < 1:
        raise ValueError(f"topk must be at least 1, found {topk}")
    has_slots = picks.dim() == 2 and (picks.shape[1] > 0 or not table.num_local_rows)
    if not has_slots or picks.shape[0] != table.num_local_rows:
        raise ValueError(
            f"picks must be ({table.num_local_rows} local rows, slots), found shape "
            f"{tuple(picks.shape)}"
        )
    if picks.dtype.is_floating_point or picks.dtype == torch.bool:
        raise ValueError(f"picks must be integer key ids, found {picks.dtype}")
    return picks.to(operands.q.device)


def picks_of(picks: Tensor, rows: RowTable) -> Tensor:
    """Return the picks of a table's rows."""
    return picks[rows.row.to(picks.device)]


class _Verdict:
    """Collects the judgement of a table chunk by chunk, in any order."""

    def __init__(self, table: RowTable, topk: int, windows: Tensor | None) -> None:
        self.table = table
        self.topk = topk
        self.windows = windows
        self.counts = RowCounts.zeros(len(table))
        self.bands = Bands()
        self.worst = WorstRows()

    def add(self, index: Tensor, judged: Judged, due: Tensor, *, exhaustive: bool) -> None:
        rows = self.table.take(index)
        self.counts.put(index, rows, judged, self.topk, self.windows)
        valid = rows.valid.to(due.device)
        shown = None if self.windows is None else self.windows[rows.row].to(due.device)[valid]
        self.bands.add(
            positions=rows.position.to(due.device)[valid],
            due=due[valid],
            picked=judged.picked[valid],
            excused=judged.excused[valid],
            exhaustive=exhaustive,
            windows=shown,
        )
        counts = self.counts.take(index)
        self.worst.add(rows, judged, due, counts.num_wrong, counts.num_out_of_bounds)
