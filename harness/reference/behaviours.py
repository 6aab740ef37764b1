"""Predictions of named faulty behaviours, and whether picks equal one, ties understood.

A known fault is only *known* when the picks are what the fault predicts. A behaviour here is a
*window*: the number of keys, counted from the start of its sequence, for which the kernel left a
row a finite score; all later ones are -inf. The row's length still says the absolute limit L, so
that with K keys due a row with window W <= L picks

===========  ==========================  ===============================================
case         masked keys kept            masked keys dropped
===========  ==========================  ===============================================
L <= K       all L visible keys          the W keys of the window
W < K < L    the W keys of the window    the W keys of the window
             and K - W arbitrary others
             below L, all distinct
W >= K       the K best of the window    the K best of the window
===========  ==========================  ===============================================

Masked keys are dropped where the caller removes picks whose score is not finite, as Megatron does
for its sparse indexer loss; otherwise they stay.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from harness.record.selection import BehaviourEvidence
from harness.reference.cut import Cut, cut_rows
from harness.reference.marks import Mark, Slots, judge_slots, sort_slots
from harness.reference.operands import Operands, ScoredRows, scored_rows
from harness.reference.rows import RowTable, parts
from harness.reference.selection import check_picks, picks_of
from harness.reference.site import Site

MaskedKeys = Literal["kept", "dropped"]

_UNSCORED_ROWS = 512
"""Rows judged at a time where no scores are needed."""


def chunk_local_window(table: RowTable, row_in_chunk: Tensor) -> Tensor:
    """Row i of a kernel call sees the first i + 1 keys of its sequence.

    The fault of a caller that passes no ``q_causal_offsets`` to a kernel that masks top-left:
    https://github.com/NVIDIA/cudnn-frontend/pull/316.

    Args:
        table: The rows.
        row_in_chunk: (R,) int64, index of each row of the table in its kernel call.

    Returns:
        (R,) int64 windows, at most the limits.
    """
    return torch.minimum(row_in_chunk + 1, table.limits)


BEHAVIOURS: dict[str, Callable[[RowTable, Tensor], Tensor]] = {
    "chunk_local_window": chunk_local_window,
}
"""Name (the ``as`` of a ``known`` rule) to the windows it predicts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BehaviourFinding:
    """Rows of a table against a prediction; every tensor is (R,) bool.

    Attributes:
        name: The behaviour.
        table: The rows.
        checked: Valid rows; the others say nothing and are False everywhere.
        matching: The prediction explains the row's picks.
        telling: No right selection of the row would match.
        exhaustive: The limit is at most topk.
        exhaustive_exact: Of these, the picks are exactly the visible keys.
        beyond_window: The window holds topk keys or more and a key past it was picked, which a
            kernel with this fault cannot do.
    """

    name: str
    table: RowTable
    checked: Tensor
    matching: Tensor
    telling: Tensor
    exhaustive: Tensor
    exhaustive_exact: Tensor
    beyond_window: Tensor

    def evidence(self, site: Site) -> BehaviourEvidence:
        """Return the record of this finding."""
        mismatches = self.table.row[self.checked & ~self.matching]
        return BehaviourEvidence(
            **site.fields(),
            name=self.name,
            rows=int(self.checked.sum()),
            rows_matching=int(self.matching.sum()),
            rows_telling=int(self.telling.sum()),
            rows_exhaustive=int(self.exhaustive.sum()),
            rows_exhaustive_exact=int(self.exhaustive_exact.sum()),
            rows_beyond_window=int(self.beyond_window.sum()),
            first_mismatch=int(mismatches.min()) if mismatches.numel() else None,
        )


def chunk_rows(table: RowTable, *, rows_per_call: int | Sequence[int] | None = None) -> Tensor:
    """Return each local row's index in its kernel call, for calls that cut segments evenly.

    Args:
        table: All rows of a rank.
        rows_per_call: Rows of one call, or of one call in each segment (a caller whose chunks have
            a byte budget takes fewer rows where more keys are visible); None where each segment
            is one call.

    Returns:
        (local rows,) int64.
    """
    if table.is_sample:
        raise ValueError("chunk_rows needs all rows of the rank, found a sample")
    if rows_per_call is None:
        return table.row_in_segment
    if isinstance(rows_per_call, int):
        return table.row_in_segment % rows_per_call
    return table.row_in_segment % torch.tensor(rows_per_call)[table.segment]


def check_behaviour(
    name: str,
    picks: Tensor,
    operands: Operands,
    table: RowTable,
    *,
    topk: int,
    row_in_chunk: Tensor | None = None,
    masked_keys: MaskedKeys = "kept",
) -> BehaviourFinding:
    """Compare picks with what a named faulty behaviour predicts.

    Args:
        name: A key of ``BEHAVIOURS``.
        picks: (local rows, P) packed key ids, -1 for an empty slot, in any order.
        operands: q, k and w of the rank.
        table: The rows to check, or a sample of them.
        topk: Keys due per row at most.
        row_in_chunk: (local rows,) int64, index of every local row in its kernel call; None where
            each segment is one call.
        masked_keys: Whether picks of masked keys are still in ``picks`` or became -1.

    Raises:
        ValueError: for an unknown behaviour, or when the arguments do not belong together.
    """
    if name not in BEHAVIOURS:
        near = difflib.get_close_matches(name, BEHAVIOURS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"no behaviour {name!r}, expected one of {sorted(BEHAVIOURS)}{hint}")
    picks = check_picks(picks, operands, table, topk)
    if row_in_chunk is None:
        in_chunk = table.row_in_segment
    elif row_in_chunk.shape == (table.num_local_rows,):
        in_chunk = row_in_chunk.cpu().to(torch.int64)[table.row]
    else:
        raise ValueError(
            f"row_in_chunk must have one entry for each of the {table.num_local_rows} local rows, "
            f"found shape {tuple(row_in_chunk.shape)}"
        )
    windows = BEHAVIOURS[name](table, in_chunk)
    return _Check(name, table, windows, topk, masked_keys).run(picks, operands)


class _Check:
    """One comparison: fills a finding chunk by chunk."""

    def __init__(
        self, name: str, table: RowTable, windows: Tensor, topk: int, masked_keys: MaskedKeys
    ) -> None:
        self.table = table
        self.windows = windows
        self.topk = topk
        self.kept = masked_keys == "kept"
        falses = torch.zeros(len(table), dtype=torch.bool)
        self.exhaustive = table.valid & (table.limits <= topk)
        self.finding = BehaviourFinding(
            name=name,
            table=table,
            checked=table.valid,
            matching=falses.clone(),
            telling=falses.clone(),
            exhaustive=self.exhaustive,
            exhaustive_exact=falses.clone(),
            beyond_window=falses.clone(),
        )

    @torch.no_grad()
    def run(self, picks: Tensor, operands: Operands) -> BehaviourFinding:
        """Check all rows: those due all their keys without scores, the others with."""
        for index in parts(self.exhaustive, _UNSCORED_ROWS):
            self._unranked(index, self._slots(picks, index))
        ranked = (self.table.valid & ~self.exhaustive).nonzero().flatten()
        for chunk in scored_rows(operands, self.table, ranked):
            slots = self._slots(picks, chunk.index)
            self._ranked(chunk, slots, operands.margin_unit)
        return self.finding

    def _slots(self, picks: Tensor, index: Tensor) -> Slots:
        rows = self.table.take(index)
        return sort_slots(picks_of(picks, rows), rows)

    def _unranked(self, index: Tensor, slots: Slots) -> None:
        """Rows with L <= K: no key is ranked, so the window alone decides what can be lost."""
        limits, windows = self.table.limits[index], self.windows[index]
        inside, outside, clean = _by_window(slots, windows)
        complete = clean & (inside + outside == limits)
        self.finding.exhaustive_exact[index] = complete
        if self.kept:
            self.finding.matching[index] = complete
        else:
            self.finding.matching[index] = clean & (inside == windows) & (outside == 0)
            self.finding.telling[index] = windows < limits

    def _ranked(self, chunk: ScoredRows, slots: Slots, unit: float) -> None:
        """Rows with L > K: those whose window ranks K keys or more, and those it fills up."""
        index, windows = chunk.index, self.windows[chunk.index]
        inside, outside, clean = _by_window(slots, windows)
        filler = self.topk - windows if self.kept else torch.zeros_like(windows)
        matching = clean & (inside == windows) & (outside == filler)

        # A window of fewer keys is treated as one of K here, and its result is not used.
        ranking = windows >= self.topk
        visible = windows.clamp(min=self.topk).to(chunk.scores.device).unsqueeze(1)
        columns = torch.arange(chunk.scores.shape[1], device=chunk.scores.device)
        masked = torch.where(columns < visible, chunk.scores, -torch.inf)
        predicted = cut_rows(chunk, masked, self.topk, unit)
        judged = judge_slots(slots, chunk, predicted, unit).slots
        good = (judged.of(Mark.EXACT) | judged.of(Mark.TIE)) & (judged.keys < visible)
        best = clean & (outside == 0) & (good.sum(1).cpu() == self.topk)
        self.finding.matching[index] = torch.where(ranking, best & (inside == self.topk), matching)
        self.finding.telling[index] = self._telling(chunk, predicted, unit)

        beyond = slots.of(Mark.VISIBLE) | slots.of(Mark.FUTURE)
        beyond &= slots.keys >= windows.to(slots.keys.device).unsqueeze(1)
        self.finding.beyond_window[index] = ranking & beyond.any(1).cpu()

    def _telling(self, chunk: ScoredRows, predicted: Cut, unit: float) -> Tensor:
        """Judge the predicted picks by the right reference: (r,) bool, some of them is wrong."""
        windows = self.windows[chunk.index].to(predicted.keys.device).unsqueeze(1)
        inside = predicted.keys < windows
        marks = torch.where(inside, Mark.VISIBLE, Mark.EMPTY)
        right = cut_rows(chunk, chunk.scores, self.topk, unit)
        judged = judge_slots(Slots(keys=predicted.keys, marks=marks), chunk, right, unit)
        wrong = judged.slots.of(Mark.BELOW).any(1)
        if not self.kept:
            wrong |= ~inside.all(1)
        return wrong.cpu()


def _by_window(slots: Slots, windows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count distinct visible picks inside and outside the window of each row.

    Returns:
        (r,) int64 inside, (r,) int64 outside, and (r,) bool: nothing but visible, distinct picks.
    """
    inside = slots.keys < windows.to(slots.keys.device).unsqueeze(1)
    visible = slots.of(Mark.VISIBLE)
    clean = (visible | slots.of(Mark.EMPTY)).all(1)
    return (
        (visible & inside).sum(1).cpu(),
        (visible & ~inside).sum(1).cpu(),
        clean.cpu(),
    )
