"""What each pick of a row is: the rules by which picks are counted, in one place.

A *visible* pick lies in the row's own sequence below its limit. The rules per row, with
``due = min(topk, limit)``:

* A negative slot of -1 is empty. Any other negative pick, or one past the key tensor, is
  ``out_of_range``.
* ``foreign``: in the tensor, outside the row's own sequence (its padded keys). ``future``: in its
  own sequence, at or past the limit. Every such slot counts, repeated or not.
* A visible pick that repeats an earlier one is ``duplicate``; what follows counts distinct ones.
* ``exact``: in the reference set (see ``cut``). With at most topk visible keys that is every key.
* ``tie``: not in it, level with the cut, and in the place of a level reference key that was not
  picked. There are as many such places as level reference keys are left out, so
  ``exact + tie`` does not depend on the order of tied keys, and keys at the cut cannot
  make up for a better key that was left out: level picks beyond those places are ``below``.
* ``below``: any other visible pick.
* ``missing = max(0, due - (exact + tie + below))``, so that a row that holds at most ``due``
  distinct visible picks has ``due == exact + tie + below + missing``.

A padding row is judged for bounds alone: ``foreign`` and ``out_of_range`` count, nothing is due.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.reference.cut import Cut, margins
from harness.reference.operands import ScoredRows
from harness.reference.rows import RowTable


class Mark(enum.IntEnum):
    """What one slot of a row holds."""

    EMPTY = 0
    EXACT = 1
    TIE = 2
    BELOW = 3
    FUTURE = 4
    FOREIGN = 5
    OUT_OF_RANGE = 6
    DUPLICATE = 7
    VISIBLE = 8
    """Visible and distinct, not judged yet (or, in a padding row, not at all)."""


WRONG_MARKS = (Mark.BELOW, Mark.FUTURE, Mark.FOREIGN, Mark.OUT_OF_RANGE, Mark.DUPLICATE)
"""Marks of slots that hold what they should not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slots:
    """Picks of r rows, sorted, with what is known of them without scores.

    Attributes:
        keys: (r, P) int64 picks relative to the first key of the row's sequence, ascending.
        marks: (r, P) int64, ``Mark`` values.
    """

    keys: Tensor
    marks: Tensor

    def of(self, mark: Mark) -> Tensor:
        """Return (r, P) bool, the slots with one mark."""
        return self.marks == mark


def sort_slots(picks: Tensor, table: RowTable) -> Slots:
    """Mark empty slots, bounds and repeats.

    Args:
        picks: (r, P) packed key ids of the table's rows, -1 for an empty slot, in any order.
        table: The r rows.
    """
    device = picks.device
    starts = table.starts.to(device).unsqueeze(1)
    limits = table.limits.to(device).unsqueeze(1)
    lengths = table.key_lengths.to(device).unsqueeze(1)
    valid = table.valid.to(device).unsqueeze(1)
    picks = picks.to(torch.int64).sort(dim=1).values
    keys = picks - starts
    own = (keys >= 0) & (keys < lengths)
    repeated = torch.zeros_like(own)
    repeated[:, 1:] = picks[:, 1:] == picks[:, :-1]
    marks = torch.full_like(keys, Mark.FOREIGN)
    marks[own] = Mark.FUTURE
    # A padding row may hold any key of its own range: nothing reads what it selects.
    visible = own & ((keys < limits) | ~valid)
    marks[visible] = Mark.VISIBLE
    marks[visible & repeated & valid] = Mark.DUPLICATE
    marks[(picks < 0) | (picks >= table.num_keys)] = Mark.OUT_OF_RANGE
    marks[picks == -1] = Mark.EMPTY
    return Slots(keys=keys, marks=marks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """Slots of r rows against their reference sets.

    Attributes:
        slots: With every visible pick marked exact, tie or below.
        picked: (r, k) bool, reference keys that were picked.
        excused: (r, k) bool, reference keys that were not, and in whose place a tie stands.
        gaps: (r,) float64, the greatest score by which a ``below`` pick falls short: of the cut,
            or, for a pick level with it, of the best key left out.
    """

    slots: Slots
    picked: Tensor
    excused: Tensor
    gaps: Tensor


def judge_slots(slots: Slots, chunk: ScoredRows, cut: Cut, unit: float) -> Judged:
    """Mark the visible picks of rows that see more than k keys.

    Args:
        slots: From ``sort_slots``.
        chunk: The same rows with their scores.
        cut: Their reference sets.
        unit: ``Operands.margin_unit``.
    """
    visible = slots.of(Mark.VISIBLE)
    keys = torch.where(visible, slots.keys, 0)
    place = torch.searchsorted(cut.keys, keys).clamp(max=cut.keys.shape[1] - 1)
    exact = visible & (cut.keys.gather(1, place) == keys)
    picked = torch.zeros_like(cut.above)
    rows, columns = exact.nonzero(as_tuple=True)
    picked[rows, place[rows, columns]] = True

    scores = chunk.scores.gather(1, keys)
    level = scores >= cut.threshold - margins(chunk, keys, cut.norm, unit)
    level &= visible & ~exact
    open_places = ~picked & ~cut.above
    tie = level & (level.cumsum(1) <= open_places.sum(1, keepdim=True))
    below = visible & ~exact & ~tie
    excused = open_places & (open_places.cumsum(1) <= tie.sum(1, keepdim=True))

    best_left = torch.where(picked, -torch.inf, cut.scores).amax(1, keepdim=True)
    short_of = torch.where(level, best_left, cut.threshold)
    gaps = torch.where(below, short_of - scores, 0.0).amax(1)
    marks = slots.marks.clone()
    marks[exact], marks[tie], marks[below] = Mark.EXACT, Mark.TIE, Mark.BELOW
    return Judged(
        slots=Slots(keys=slots.keys, marks=marks),
        picked=picked,
        excused=excused,
        gaps=gaps.to(torch.float64),
    )


def judge_exhaustive(slots: Slots, limits: Tensor, topk: int) -> tuple[Judged, Tensor]:
    """Mark the visible picks of rows that see at most k keys, so that all of them are due.

    Args:
        slots: From ``sort_slots``.
        limits: (r, 1) int64, at most ``topk``; 0 for a padding row, which is due nothing.
        topk: Keys due at most.

    Returns:
        The judgement, and the reference keys (r, topk) int64: 0 to limit - 1, then -1.
    """
    exact = slots.of(Mark.VISIBLE) & (slots.keys < limits)
    marks = torch.where(exact, Mark.EXACT, slots.marks)
    due = torch.arange(topk, device=limits.device).expand(limits.shape[0], topk)
    due = torch.where(due < limits, due, -1)
    picked = torch.zeros(due.shape, dtype=torch.bool, device=due.device)
    rows, columns = exact.nonzero(as_tuple=True)
    picked[rows, slots.keys[rows, columns]] = True
    judged = Judged(
        slots=Slots(keys=slots.keys, marks=marks),
        picked=picked,
        excused=torch.zeros_like(picked),
        gaps=torch.zeros(limits.shape[0], dtype=torch.float64, device=due.device),
    )
    return judged, due
