"""What is compared of a call: cells with their tolerance, from a model's or a kernel's result."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.record.certificate import CellDifference

SCORE_UNIT = 2.0**-20
"""Error of an fp32 sum of exact bf16 products, in parts of the sum of their magnitudes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One compared part of a result.

    Attributes:
        value: Tensor on the CPU, or a word.
        atol: Absolute bound, a number or a tensor of ``value``'s shape.
        rtol: Bound as a part of the model's magnitude.
    """

    value: torch.Tensor | str
    atol: torch.Tensor | float = 0.0
    rtol: float = 0.0


Arguments = Mapping[str, Any]
Look = Callable[[Mapping[str, Any], Arguments], dict[str, Cell]]
"""(result, arguments), both on the CPU, to named cells."""


def compare(model: Mapping[str, Cell], kernel: Mapping[str, Cell]) -> tuple[CellDifference, ...]:
    """Return the cells on which a kernel's result differs from the model's.

    Tolerances are the model's. NaN equals NaN, and an infinity only itself.
    """
    found = [_difference(name, cell, kernel.get(name)) for name, cell in model.items()]
    return tuple(item for item in found if item is not None)


def _difference(name: str, model: Cell, kernel: Cell | None) -> CellDifference | None:
    if kernel is None:
        return CellDifference(cell=name, model=_word(model), kernel="missing")
    if isinstance(model.value, str) or isinstance(kernel.value, str):
        if model.value is kernel.value or _word(model) == _word(kernel):
            return None
        return CellDifference(cell=name, model=_word(model), kernel=_word(kernel))
    if model.value.shape != kernel.value.shape:
        return CellDifference(
            cell=name,
            model=f"shape {tuple(model.value.shape)}",
            kernel=f"shape {tuple(kernel.value.shape)}",
        )
    return _in_elements(name, model, kernel.value)


def _in_elements(name: str, model: Cell, kernel: torch.Tensor) -> CellDifference | None:
    assert isinstance(model.value, torch.Tensor), "cells of words were compared before"
    want, got = model.value.double(), kernel.double()
    bound = torch.as_tensor(model.atol, dtype=torch.float64) + model.rtol * want.abs()
    gap = (got - want).abs()
    same = (got == want) | (got.isnan() & want.isnan()) | (gap <= bound)
    wrong = (~same).nonzero()
    if not len(wrong):
        return None
    first = tuple(int(i) for i in wrong[0])
    scaled = torch.where(same, 0.0, gap / bound.expand_as(gap).clamp(min=1e-300)).nan_to_num(
        nan=math.inf, posinf=math.inf
    )
    greatest = float(scaled.max()) if float(bound.abs().sum()) > 0 else None
    return CellDifference(
        cell=name,
        model=f"{float(want[first]):.6g}",
        kernel=f"{float(got[first]):.6g}",
        num_different=len(wrong),
        num_elements=want.numel(),
        first=first,
        greatest=greatest if greatest is not None and math.isfinite(greatest) else None,
    )


def _word(cell: Cell) -> str:
    value = cell.value
    return value if isinstance(value, str) else f"tensor of shape {tuple(value.shape)}"


def look_scores(result: Mapping[str, Any], arguments: Arguments) -> dict[str, Cell]:
    """Forward: which cells are masked, and the scores of the others within fp32 summation."""
    scores = result["scores"]
    seen = torch.isfinite(scores)
    return {
        "masked cells": Cell(value=~seen),
        "scores": Cell(value=torch.where(seen, scores, 0.0), atol=_score_bound(arguments, scores)),
        "memory layout": Cell(value="contiguous" if scores.is_contiguous() else "strided"),
    }


def look_masks(result: Mapping[str, Any], arguments: Arguments) -> dict[str, Cell]:
    """Forward, where the values of some cells are anybody's: which are masked."""
    return {"masked cells": Cell(value=~torch.isfinite(result["scores"]))}


def _score_bound(arguments: Arguments, scores: torch.Tensor) -> float:
    q, k, w = (arguments[name].double() for name in ("q", "k", "w"))
    per_row = (w.abs() * q.norm(dim=-1)).sum(-1)
    size = float(per_row.nan_to_num().max()) * float(k.norm(dim=-1).nan_to_num().max())
    return SCORE_UNIT * size * float(arguments.get("sm_scale", 1.0))


def look_picks(result: Mapping[str, Any], arguments: Arguments) -> dict[str, Cell]:
    """Top-k: as sets, with equal scores taken for each other; short rows in their fixed order."""
    indices, scores = result["indices"].long(), arguments["input_values"]
    width = scores.size(1)
    is_short = (_row_lengths(arguments) <= arguments["top_k"]).unsqueeze(1)
    inside = (indices >= 0) & (indices < width)
    picked = scores.float().gather(1, indices.clamp(0, width - 1)).masked_fill(~inside, -torch.inf)
    return {
        "short rows": Cell(value=torch.where(is_short, indices, -2)),
        "slots without a key": Cell(value=(indices < 0).sum(1)),
        "picks past the length": Cell(value=_past(indices, arguments)),
        "repeated picks": Cell(value=_repeated(indices)),
        "scores of the picks": Cell(value=picked.sort(1, descending=True).values),
    }


def look_pick_classes(result: Mapping[str, Any], arguments: Arguments) -> dict[str, Cell]:
    """Top-k, where a defect leaves the picks to chance: whether any lies past its length."""
    past = int(_past(result["indices"].long(), arguments).sum())
    return {"picks past the length": Cell(value="some" if past else "none")}


def look_ordered_picks(result: Mapping[str, Any], arguments: Arguments) -> dict[str, Cell]:
    """Top-k with its ties and order settled: exactly these ids."""
    return {"indices": Cell(value=result["indices"])}


def _row_lengths(arguments: Arguments) -> torch.Tensor:
    """Lengths of all rows; of several rows a sequence, the last one has the sequence's length."""
    next_n = int(arguments.get("next_n", 1))
    lengths = arguments["seq_lens"].repeat_interleave(next_n)
    return lengths - next_n + torch.arange(len(lengths)) % next_n + 1


def _past(indices: torch.Tensor, arguments: Arguments) -> torch.Tensor:
    return (indices >= _row_lengths(arguments).clamp(min=0).unsqueeze(1)).sum(1)


def _repeated(indices: torch.Tensor) -> torch.Tensor:
    ordered = indices.sort(1).values
    return ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).sum(1)


def look_fused(result: Mapping[str, Any], arguments: Arguments) -> dict[str, Cell]:
    """Fused top-k: logits of the picks in order of size, and the slots without a key."""
    logits = result["logits"].sort(-1, descending=True).values
    bound = _score_bound(arguments, logits)
    seen = torch.isfinite(logits)
    return {
        "slots without a key": Cell(value=(result["indices"] < 0).sum(-1)),
        "smallest id": Cell(value=result["indices"].amin(-1)),
        "masked logits": Cell(value=~seen),
        "logits": Cell(value=torch.where(seen, logits, 0.0), atol=bound),
    }


def look_values(*names: str, rtol: float, of_max: float) -> Look:
    """Return a look at named tensors within ``rtol`` and a part of the greatest magnitude."""

    def look(result: Mapping[str, Any], arguments: Arguments) -> dict[str, Cell]:
        cells = {}
        for name in names:
            value = result[name]
            finite = value[torch.isfinite(value)]
            greatest = float(finite.abs().max()) if finite.numel() else 0.0
            cells[name] = Cell(value=value, atol=of_max * greatest, rtol=rtol)
        return cells

    return look


def look_finiteness(*names: str) -> Look:
    """Return a look at whether named tensors are finite, where their values are anybody's."""

    def look(result: Mapping[str, Any], arguments: Arguments) -> dict[str, Cell]:
        return {
            name: Cell(value="finite" if bool(torch.isfinite(result[name]).all()) else "not finite")
            for name in names
        }

    return look
