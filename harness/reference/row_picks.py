"""Judge what a top-k kernel returned for a table of scores: exact, since scores are given.

The counts are those of ``harness.reference.marks``. Two keys tie when their scores are equal. A row
that holds a NaN has no order that a kernel promises: only bounds, repeats and the number of its
picks are judged.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.record.selection import OverlapStats, RowFinding, SelectionEvidence
from harness.reference.findings import MAX_FINDINGS, MAX_KEYS
from harness.reference.site import Site

_FIELDS = ("due", "exact", "tie", "below", "future", "missing", "duplicate", "out_of_range")


@dataclass(kw_only=True, slots=True)
class TableJudgement:
    """Counts over all rows of a table.

    Attributes:
        topk: Keys due per row at most.
        rows: Rows judged.
        rows_exhaustive: Of these, rows that see at most topk keys.
        counts: Field of ``OverlapStats`` to its sum.
        worst: Up to four rows in full, those out of bounds first.
        largest_gap: Greatest score by which a pick falls short of the cut.
    """

    topk: int
    rows: int = 0
    rows_exhaustive: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_FIELDS, 0))
    worst: list[tuple[tuple[int, int], RowFinding]] = field(default_factory=list)
    largest_gap: float = 0.0

    def evidence(self, site: Site) -> SelectionEvidence:
        """Return the record of this judgement."""
        stats = OverlapStats(
            rows=self.rows,
            rows_exhaustive=self.rows_exhaustive,
            largest_gap=self.largest_gap,
            **self.counts,
        )
        return SelectionEvidence(
            **site.fields(),
            stage="wrapper",
            topk=self.topk,
            reference_dtype="fp32",
            total=stats,
            worst_rows=tuple(finding for _, finding in self.worst),
        )


def judge_table(scores: Tensor, lengths: Tensor, picks: Tensor, topk: int) -> TableJudgement:
    """Judge the picks of every row.

    Args:
        scores: (rows, keys) fp32.
        lengths: (rows,) int64; beyond the number of keys, all of them are due.
        picks: (rows, slots) integer columns, -1 for an empty slot, in any order.
        topk: Keys due per row, or all visible ones where they are fewer.

    Raises:
        ValueError: the three are not of the same rows.
    """
    rows, keys = scores.shape
    if lengths.shape != (rows,) or picks.dim() != 2 or picks.size(0) != rows:
        raise ValueError(
            f"scores have {rows} rows, lengths {tuple(lengths.shape)} and picks "
            f"{tuple(picks.shape)}; give one length and one row of picks for each"
        )
    found = TableJudgement(topk=topk)
    lengths = lengths.clamp(min=0, max=keys)
    whole = _all_of_them(lengths, picks, topk)
    found.rows = found.rows_exhaustive = int(whole.sum())
    found.counts["due"] = found.counts["exact"] = int(lengths[whole].sum())
    for row in (~whole).nonzero().flatten().tolist():
        _judge_row(found, row, scores[row, : int(lengths[row])], picks[row], keys)
    return found


def _all_of_them(lengths: Tensor, picks: Tensor, topk: int) -> Tensor:
    """Rows that see at most topk keys and picked exactly those, (rows,) bool."""
    slots = torch.arange(picks.size(1))
    first = picks.size(1) - lengths.unsqueeze(1)
    due = torch.where(slots >= first, slots - first, -1)
    return (lengths <= topk) & (first[:, 0] >= 0) & (picks.sort(dim=1).values == due).all(1)


def _judge_row(found: TableJudgement, row: int, visible: Tensor, slots: Tensor, keys: int) -> None:
    length = visible.numel()
    due = min(found.topk, length)
    filled = slots[slots != -1]
    inside = filled[(filled >= 0) & (filled < keys)]
    own = inside[inside < length]
    distinct = own.unique()
    best = reference_columns(visible, due)
    counts = dict.fromkeys(_FIELDS, 0)
    counts["due"] = due
    counts["out_of_range"] = filled.numel() - inside.numel()
    counts["future"] = inside.numel() - own.numel()
    counts["duplicate"] = own.numel() - distinct.numel()
    exact = torch.isin(distinct, best)
    others = distinct[~exact]
    level = others
    if due and not bool(visible.isnan().any()):
        threshold = visible[best].min()
        # Ties stand in for level keys of the reference set that were left out, one for one.
        left = best[~torch.isin(best, distinct)]
        room = int((visible[left] == threshold).sum())
        level = others[visible[others] == threshold][:room]
        short = others[~torch.isin(others, level)]
        if short.numel():
            gap = float((threshold - visible[short]).max())
            found.largest_gap = max(found.largest_gap, gap) if gap == gap else found.largest_gap
    counts["exact"] = int(exact.sum())
    counts["tie"] = level.numel()
    counts["below"] = others.numel() - level.numel()
    held = counts["exact"] + counts["tie"] + counts["below"]
    counts["missing"] = max(due - held, 0)
    found.rows += 1
    found.rows_exhaustive += int(length <= found.topk)
    for name, count in counts.items():
        found.counts[name] += count
    _keep_worst(found, row, counts, filled, best, length)


def reference_columns(visible: Tensor, due: int) -> Tensor:
    """Best columns of a row, ascending; of equal scores the lower columns, NaN last."""
    if due == visible.numel():
        return torch.arange(due)
    # Not a number is no better than what a mask leaves behind.
    ranked = torch.where(visible.isnan(), -torch.inf, visible)
    order = ranked.sort(descending=True, stable=True).indices
    return order[:due].sort().values


def _keep_worst(
    found: TableJudgement,
    row: int,
    counts: dict[str, int],
    filled: Tensor,
    best: Tensor,
    length: int,
) -> None:
    outside = counts["out_of_range"] + counts["future"]
    wrong = outside + counts["below"] + counts["duplicate"] + counts["missing"]
    if not wrong:
        return
    key = (-outside, -wrong)
    if len(found.worst) == MAX_FINDINGS and key >= found.worst[-1][0]:
        return
    picked = filled[~torch.isin(filled, best)]
    finding = RowFinding(
        row=row,
        position=row,
        sequence=0,
        limit=length,
        picked=tuple(filled[:MAX_KEYS].tolist()),
        wrong=tuple(picked[:MAX_KEYS].tolist()),
        due=tuple(best[~torch.isin(best, filled)][:MAX_KEYS].tolist()),
    )
    found.worst = sorted([*found.worst, (key, finding)], key=lambda kept: kept[0])[:MAX_FINDINGS]
