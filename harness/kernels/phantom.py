"""Radix selection of one row with the phantom lanes of defect ``d446``, pass by pass.

The lanes of the last tile behind the aligned vectors are filled with -inf and counted as
candidates. They carry a column index past the row, and the refinement passes re-read the score at
that index: the next row's, or whatever lies behind the tensor. The model follows the passes with a
seeded arrival order, since the lists are filled by atomics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from harness.kernels import ranking
from harness.kernels.topk_plan import RowPlan, TopKPlan
from harness.kernels.topk_rows import RowReader, check_scratch

_BINS = 256


@dataclass(kw_only=True, slots=True)
class _Pass:
    """State that the refinement passes share.

    Attributes:
        remaining: Picks still to be found below the emitted ones.
        threshold: Bin of the cut; keeps its old value when no bin qualifies.
        emitted: Ids above the cut, in arrival order, one array per pass.
        last: Ids that the last pass places at the end of the slots.
    """

    remaining: int
    threshold: int
    emitted: list[np.ndarray]
    last: np.ndarray


def phantom_row(
    plan: TopKPlan,
    loads: RowPlan,
    reader: RowReader,
    *,
    row: int,
    length: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """Select ``plan.top_k`` ids of a row, phantom lanes included.

    Args:
        plan: Of the call.
        loads: Of the row.
        reader: Input.
        row: Row.
        length: Columns to rank, above top_k.
        rng: Arrival order and leftover ids.

    Returns:
        int64 (top_k,); may hold ids past the length, and the same id twice.

    Raises:
        AddressFault: A re-read score or a spilled candidate leaves its allocation.
    """
    scores = reader.read_run(row, length)
    buckets = ranking.coarse_bucket(scores).numpy()
    worst = ranking.MINUS_INF_BUCKET[scores.dtype]
    above = np.flatnonzero(buckets < worst)
    columns = np.concatenate(
        [np.flatnonzero(buckets == worst), np.arange(loads.phantom_start, loads.phantom_end)]
    )
    seen = ranking.fine_key(scores).numpy()[buckets == worst]
    lowest = int(ranking.fine_key(torch.tensor([float("-inf")], dtype=scores.dtype))[0])
    seen = np.concatenate([seen, np.full(loads.phantom, lowest, dtype=seen.dtype)])
    arrival = rng.permutation(columns.size)
    columns, seen = columns[arrival], seen[arrival]
    if not plan.wide_ids:
        columns = columns % 65536
    state = _Pass(
        remaining=plan.top_k - above.size,
        threshold=worst,
        emitted=[rng.permutation(above)],
        last=columns[:0],
    )
    _refine(plan, reader, row, columns, seen, state)
    return _slots(plan, state, rng)


def _refine(
    plan: TopKPlan,
    reader: RowReader,
    row: int,
    columns: np.ndarray,
    seen: np.ndarray,
    state: _Pass,
) -> None:
    """Run the refinement passes over the candidates of the cut bucket."""
    shift, rounds = (24, 4) if plan.words == 2 else (0, 1)
    histogram = np.bincount((seen >> shift) & 0xFF, minlength=_BINS)
    for number in range(rounds):
        columns = _kept(plan, reader, row, number % 2, columns)
        below = _cut(histogram, state)
        state.remaining -= below
        keys = ranking.fine_key(reader.read(row, columns)).numpy()
        bins = (keys >> shift) & 0xFF
        state.emitted.append(columns[bins < state.threshold])
        if state.remaining == 0:
            return
        at_cut = bins == state.threshold
        columns, keys = columns[at_cut], keys[at_cut]
        if number == rounds - 1:
            state.last = columns[: max(state.remaining, 0)]
            return
        shift -= 8
        histogram = np.bincount((keys >> shift) & 0xFF, minlength=_BINS)


def _kept(
    plan: TopKPlan, reader: RowReader, row: int, half: int, columns: np.ndarray
) -> np.ndarray:
    """Candidates that the list of a pass holds: the rest spills, or is dropped without scratch."""
    if not plan.spills:
        return columns[: plan.capacity]
    spilled = columns.size - plan.capacity
    check_scratch(reader.bounds, plan, row=row, half=half, first=0, count=spilled)
    return columns


def _cut(histogram: np.ndarray, state: _Pass) -> int:
    """Find the bin of the cut; return how many candidates lie in better bins."""
    totals = np.cumsum(histogram)
    before = totals - histogram
    found = np.flatnonzero((before <= state.remaining) & (totals > state.remaining))
    if found.size:
        state.threshold = int(found[0])
    return int(before[state.threshold])


def _slots(plan: TopKPlan, state: _Pass, rng: np.random.Generator) -> np.ndarray:
    """Lay the ids out in slots; a slot nobody wrote keeps an id of an earlier row."""
    slots = rng.integers(0, max(plan.num_cols, 1), plan.top_k)
    emitted = np.concatenate(state.emitted)[: plan.top_k]
    slots[: emitted.size] = emitted
    first = plan.top_k - state.remaining
    if state.last.size and first >= 0:
        slots[first : first + state.last.size] = state.last
    return slots
