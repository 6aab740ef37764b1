"""Planted faults: named ways to spoil right picks, each with the count that must show it.

Every check of a selection has one here, so that tests and self-checks can show that it can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.reference.operands import Operands, scored_rows
from harness.reference.rows import RowTable


@dataclass(frozen=True, kw_only=True, slots=True)
class PlantedFault:
    """One way to spoil the first slot of some rows.

    Attributes:
        count: Field of ``OverlapStats`` that must become at least 1.
        plant: (picks, operands, table) to spoiled picks; rows it cannot apply to stay as they are.
    """

    count: str
    plant: Callable[[Tensor, Operands, RowTable], Tensor]


def _put(picks: Tensor, table: RowTable, rows: Tensor, keys: Tensor) -> Tensor:
    """Write ``keys`` (R,) into slot 0 of the rows of a full table marked in ``rows``."""
    assert not table.is_sample, "faults are planted in the picks of a whole rank"
    spoiled = picks.clone()
    local = table.row[rows & table.valid & (table.limits > 0)]
    spoiled[local, 0] = keys[local].to(spoiled)
    return spoiled


def _all_rows(table: RowTable) -> Tensor:
    return torch.ones(len(table), dtype=torch.bool)


def plant_past_tensor(picks: Tensor, operands: Operands, table: RowTable) -> Tensor:
    """Pick the key behind the last one."""
    keys = torch.full_like(table.row, table.num_keys)
    return _put(picks, table, _all_rows(table), keys)


def plant_future(picks: Tensor, operands: Operands, table: RowTable) -> Tensor:
    """Pick the first key past the causal limit, where the sequence has one."""
    rows = table.limits < table.key_lengths
    return _put(picks, table, rows, table.starts + table.limits)


def plant_foreign(picks: Tensor, operands: Operands, table: RowTable) -> Tensor:
    """Pick the last key of the sequence before."""
    return _put(picks, table, table.starts > 0, table.starts - 1)


def plant_duplicate(picks: Tensor, operands: Operands, table: RowTable) -> Tensor:
    """Pick the key of slot 1 again."""
    if picks.shape[1] < 2:
        return picks.clone()
    second = picks[:, 1].cpu()
    return _put(picks, table, (second >= 0)[table.row], second)


def plant_missing(picks: Tensor, operands: Operands, table: RowTable) -> Tensor:
    """Leave a slot empty."""
    return _put(picks, table, _all_rows(table), torch.full_like(table.row, -1))


def plant_worst_key(picks: Tensor, operands: Operands, table: RowTable) -> Tensor:
    """Pick the worst visible key in place of the first slot's, where a key is left to pick."""
    keys = torch.zeros_like(table.row)
    ranked = table.valid & (table.limits > picks.shape[1])
    for chunk in scored_rows(operands, table, ranked.nonzero().flatten()):
        hidden = torch.arange(chunk.scores.shape[1], device=chunk.scores.device) >= chunk.limits
        worst = chunk.scores.masked_fill(hidden, torch.inf).argmin(1).cpu()
        keys[chunk.index] = worst + table.starts[chunk.index]
    return _put(picks, table, ranked, keys)


PLANTED_FAULTS: dict[str, PlantedFault] = {
    "past_tensor": PlantedFault(count="out_of_range", plant=plant_past_tensor),
    "future": PlantedFault(count="future", plant=plant_future),
    "foreign": PlantedFault(count="foreign", plant=plant_foreign),
    "duplicate": PlantedFault(count="duplicate", plant=plant_duplicate),
    "missing": PlantedFault(count="missing", plant=plant_missing),
    "worst_key": PlantedFault(count="below", plant=plant_worst_key),
}
"""Name to fault; all of them take the picks of a whole rank and its whole table."""
