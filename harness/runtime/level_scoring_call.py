"""Level ``kernel`` for the wrappers that score and select, against the independent reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from harness.layout import Half
from harness.production.scoring_call import (
    MaskedCall,
    call_dense_recompute,
    call_forward,
    call_forward_top_k,
    call_top_k,
    masked_call,
    score_table,
)
from harness.record.selection import SelectionEvidence
from harness.reference.expected import Expected
from harness.reference.operands import Operands
from harness.reference.precision import full_precision
from harness.reference.row_picks import judge_table
from harness.reference.rows import HALVES, RowTable
from harness.reference.scores import exact_scores, key_norms, row_weights
from harness.reference.selection import judge_selection
from harness.runtime.cases import Case, site_of
from harness.runtime.engine import Stage

Value = tuple[str, torch.Tensor, Expected]
"""(name, what the kernel returned, what is due)."""
Found = Iterator[Value | SelectionEvidence]


def _exactly(value: torch.Tensor) -> Expected:
    return Expected(value=value, scale=torch.zeros(()))


def _top_k(stage: Stage, case: Case) -> Found:
    scenario = stage.task.scenario
    call = scenario.kernel_call
    rows = case.spec.sequences[0]
    table = score_table(scenario, case.sources[0], len(case.sources), rows)
    picks, values = call_top_k(table, call, stage.source)
    site = site_of(stage, case, 0)
    yield judge_table(table.scores, table.lengths, picks, table.topk).evidence(site)
    inside = (picks >= 0) & (picks < table.scores.size(1))
    due = table.scores.gather(1, picks.clamp(0, table.scores.size(1) - 1))
    due = torch.where(inside, due, -torch.inf)
    unranked = values.isnan() & due.isnan()
    shown = values.float().masked_fill(unranked, 0.0)
    yield "topk_values", shown, _exactly(due.masked_fill(unranked, 0.0))
    if call.deterministic:
        again, _ = call_top_k(table, call, stage.source)
        moved = (again != picks).sum(1).float()
        yield "repeated_slots", moved, _exactly(torch.zeros_like(moved))


def _forward(stage: Stage, case: Case) -> Found:
    call = masked_call(stage.task.scenario, case.sources, case.spec.sequences[0])
    scores = call_forward(call, stage.source)
    for b in range(scores.size(0)):
        due = exact_scores(call.q[b], call.k[b], call.weights[b])
        yield from _masked("scores", scores[b], due, call, _score_scale(call, b), _place(call, b))


def _score_scale(call: MaskedCall, batch: int) -> torch.Tensor:
    rows = row_weights(call.q[batch], call.weights[batch], dtype=torch.float32)
    return rows.unsqueeze(1) * key_norms(call.k[batch], dtype=torch.float32)


def _masked(
    name: str,
    actual: torch.Tensor,
    due: torch.Tensor,
    call: MaskedCall,
    scale: torch.Tensor,
    place: str,
) -> Iterator[Value]:
    """Visible cells against their values, and how many others do not read -inf, row by row."""
    hidden = torch.arange(due.size(1)) >= call.limits.unsqueeze(1)
    shown = torch.where(hidden, 0.0, actual.float())
    expected = Expected(value=torch.where(hidden, 0.0, due), scale=scale, length=call.q.size(2))
    yield f"{name}{place}", shown, expected
    leaked = (hidden & ~actual.isneginf()).sum(1).float()
    yield f"masked_cells{place}", leaked, _exactly(torch.zeros_like(leaked))


def _forward_top_k(stage: Stage, case: Case) -> Found:
    scenario = stage.task.scenario
    topk = scenario.model.dsa_indexer_topk
    call = masked_call(scenario, case.sources, case.spec.sequences[0])
    picks = call_forward_top_k(call, topk, stage.source)
    for b in range(picks.size(0)):
        operands = Operands(q=call.q[b], k=call.k[b], w=call.weights[b])
        found = judge_selection(picks[b], operands, _row_table(call), topk=topk)
        yield found.evidence(site_of(stage, case, 0), stage="wrapper")
        due = torch.minimum(call.limits, torch.tensor(topk)).float()
        yield f"picked_keys{_place(call, b)}", (picks[b] >= 0).sum(1).float(), _exactly(due)


def _row_table(call: MaskedCall) -> RowTable:
    rows, keys = call.q.size(1), call.k.size(1)
    zeros = torch.zeros(rows, dtype=torch.int64)
    return RowTable(
        row=torch.arange(rows),
        segment=zeros,
        row_in_segment=torch.arange(rows),
        sequence=zeros,
        half=zeros + HALVES.index(Half.WHOLE),
        position=call.limits - 1,
        starts=zeros,
        limits=call.limits,
        key_lengths=zeros + keys,
        valid=torch.ones(rows, dtype=torch.bool),
        num_local_rows=rows,
        num_keys=keys,
    )


def _dense_recompute(stage: Stage, case: Case) -> Found:
    scenario = stage.task.scenario
    call = masked_call(scenario, case.sources, case.spec.sequences[0], attention=True)
    hidden = torch.arange(call.k.size(1)) >= call.limits.unsqueeze(1)
    with full_precision():
        logits = torch.einsum("brhd,bnd->brhn", call.q.double(), call.k.double()) * call.scale
    lse = logits.masked_fill(hidden.unsqueeze(1), -torch.inf).logsumexp(-1).float()
    out = call_dense_recompute(call, lse, stage.source)
    due = (logits - lse.double().unsqueeze(-1)).exp().sum(2)
    for b in range(out.size(0)):
        yield from _masked("score_mass", out[b], due[b], call, due[b], _place(call, b))


def _place(call: MaskedCall, batch: int) -> str:
    return "" if call.q.size(0) == 1 else f".batch{batch}"


SCORING_OPERATIONS: dict[str, Callable[[Stage, Case], Found]] = {
    "indexer_top_k": _top_k,
    "indexer_forward": _forward,
    "indexer_forward_top_k": _forward_top_k,
    "dense_attn_score_recompute": _dense_recompute,
}
"""Wrapper to what calls it and yields values and selections."""
