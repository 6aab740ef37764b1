"""Faults reported of other top-k and scoring kernels, to be planted into the models of these.

No release of nvidia-cudnn-frontend has them. Planted, they show that a scenario would notice: each
is what its report describes, in terms of the model that it is planted in.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from harness.kernels import ranking
from harness.kernels.context import KernelContext
from harness.kernels.topk_call import TopKCall

TIE_CAP = 1024
"""Level keys that ``tie_cap`` keeps (https://github.com/sgl-project/sglang/pull/30645)."""
CANDIDATE_CAP = 4096
"""Keys of the cut's bucket that ``candidate_cap`` holds
(https://github.com/local-inference-lab/b12x/pull/55)."""

RowFault = Callable[[KernelContext, TopKCall, int, torch.Tensor], torch.Tensor]
"""Takes context, call, row and its right picks (top_k,) int64; returns what the fault makes of
them."""


def plant_top_k(
    context: KernelContext,
    call: TopKCall,
    indices: torch.Tensor,
    values: torch.Tensor | None,
) -> None:
    """Change the picks of ranked rows in place, as the switched-on faults do."""
    faults = [fault for name, fault in TOP_K_FAULTS.items() if name in context.defects]
    if not faults:
        return
    plan = call.plan
    for row in (call.lengths > plan.top_k).nonzero().flatten().tolist():
        picks = indices[row].to(torch.int64)
        for fault in faults:
            picks = fault(context, call, row, picks)
        indices[row] = picks.to(torch.int32)
        if values is not None:
            inside = (picks >= 0) & (picks < plan.num_cols)
            found = call.values[row, picks.clamp(0, plan.num_cols - 1)]
            values[row] = torch.where(inside, found, float("-inf"))


def _visible(call: TopKCall, row: int) -> torch.Tensor:
    return call.values[row, : int(call.lengths[row].clamp(max=call.plan.num_cols))]


def _tie_cap(context: KernelContext, call: TopKCall, row: int, picks: torch.Tensor) -> torch.Tensor:
    """Slots of level keys past the cap are never filled."""
    scores = _visible(call, row)[picks]
    level = scores == scores.min()
    return picks.masked_fill(level & (level.cumsum(0) > TIE_CAP), -1)


def _candidate_cap(
    context: KernelContext, call: TopKCall, row: int, picks: torch.Tensor
) -> torch.Tensor:
    """Of the bucket of the cut only the lowest columns compete."""
    scores = _visible(call, row)
    buckets = ranking.coarse_bucket(scores)
    cut = int(buckets[picks].max())
    held = (buckets == cut).nonzero().flatten()[:CANDIDATE_CAP]
    above = (buckets < cut).nonzero().flatten()
    room = picks.numel() - above.numel()
    best = scores[held].topk(min(room, held.numel())).indices
    kept = torch.cat([above, held[best]])
    return torch.cat([kept, picks.new_full((picks.numel() - kept.numel(),), -1)])


def _nan_ids(context: KernelContext, call: TopKCall, row: int, picks: torch.Tensor) -> torch.Tensor:
    """A row that holds a NaN returns what shared memory held."""
    if not bool(_visible(call, row).isnan().any()):
        return picks
    limits = torch.iinfo(torch.int32)
    return torch.randint(limits.min, limits.max, picks.shape, generator=context.generator)


TOP_K_FAULTS: dict[str, RowFault] = {
    "tie_cap": _tie_cap,
    "candidate_cap": _candidate_cap,
    "nan_ids": _nan_ids,
}
"""Defect name to the fault of one ranked row."""
