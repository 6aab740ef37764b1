"""Level ``kernel``: single calls of the wrappers that score and select.

What they get is drawn like the arguments of the training wrappers in ``kernel_call``;
``indexer_top_k`` is given a score table of its own, so that rows and values can be what no scorer
would produce.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from harness.kernels.wrapping import unwrap
from harness.production.backend import KernelSource, as_production
from harness.production.inputs import InputSource, indexer_weight_scale
from harness.production.kernel_call import namespace
from harness.scenario.spec import KernelCallSpec, Scenario

_DRAWN_ELEMENTS = 1 << 24
"""Score tables up to this size are filled; of larger ones, rows that are ranked."""
_FLOOR = -1.0e5
"""Below the least fp16 number, as every score of ``underflow``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreTable:
    """What ``indexer_top_k`` is given.

    Attributes:
        scores: (rows, keys) fp32; rows that are not ranked may be zero throughout.
        lengths: (rows,) int64 visible keys of each row, as handed over.
        topk: Keys due per row.
    """

    scores: torch.Tensor
    lengths: torch.Tensor
    topk: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MaskedCall:
    """What a causally masked wrapper is given, one tensor for the batch.

    Attributes:
        q: (B, R, H, D) queries, with ``k`` (B, N, D).
        weights: (B, R, H) head weights; unused by the attention's wrapper.
        limits: (R,) int64 keys that each row may see: its place in the sequence, plus one.
        offsets: (B,) int32 place of the first row, None where it is not handed over.
        scale: Softmax scale of the attention's wrapper.
    """

    q: torch.Tensor
    k: torch.Tensor
    weights: torch.Tensor
    limits: torch.Tensor
    offsets: torch.Tensor | None
    scale: float


def score_table(scenario: Scenario, source: InputSource, batch: int, rows: int) -> ScoreTable:
    """Generate the table of one call: ``batch * rows`` rows.

    Args:
        scenario: Its geometry and ``kernel_call``.
        source: Seeds the scores.
        batch: Entries of the batch.
        rows: Rows of each entry.
    """
    call, topk = scenario.kernel_call, scenario.model.dsa_indexer_topk
    usual = call.keys if call.selected is None else call.selected
    lengths = torch.full((batch * rows,), usual, dtype=torch.int64)
    for edit in call.edits:
        if edit.length is not None:
            lengths[edit.batch * rows + edit.row] = edit.length
    # Pages that nothing writes to cost nothing, so that a wide table need not fit the machine;
    # torch.zeros would write to them.
    scores = torch.from_numpy(np.zeros((batch * rows, call.keys), dtype=np.float32))
    due = torch.arange(batch * rows)
    if scores.numel() > _DRAWN_ELEMENTS:
        due = (lengths > topk).nonzero().flatten()
    for row in due.tolist():
        key = f"scores:{source.seed}:{source.microbatch}:{row}"
        generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
        scores[row] = _SCORES[call.scores](call, generator)
    return ScoreTable(scores=scores, lengths=lengths, topk=topk)


def _normal(call: KernelCallSpec, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(call.keys, generator=generator)


def _constant(call: KernelCallSpec, generator: torch.Generator) -> torch.Tensor:
    return torch.ones(call.keys)


def _ascending(call: KernelCallSpec, generator: torch.Generator) -> torch.Tensor:
    # Close together, so that they share a bucket of a coarse first pass, and all different.
    return 1.0 + torch.arange(call.keys, dtype=torch.float32) * 2.0**-23


def _descending(call: KernelCallSpec, generator: torch.Generator) -> torch.Tensor:
    return _ascending(call, generator).flip(0)


def _chosen(call: KernelCallSpec, generator: torch.Generator) -> torch.Tensor:
    return torch.randperm(call.keys, generator=generator)[: call.above]


def _plateau(call: KernelCallSpec, generator: torch.Generator) -> torch.Tensor:
    row = torch.zeros(call.keys)
    places = _chosen(call, generator)
    row[places] = torch.rand(places.numel(), generator=generator) + 0.5
    return row


def _underflow(call: KernelCallSpec, generator: torch.Generator) -> torch.Tensor:
    return _FLOOR - torch.rand(call.keys, generator=generator) * 1000.0


def _few_finite(call: KernelCallSpec, generator: torch.Generator) -> torch.Tensor:
    row = torch.full((call.keys,), -torch.inf)
    places = _chosen(call, generator)
    row[places] = torch.randn(places.numel(), generator=generator)
    return row


def _nan(call: KernelCallSpec, generator: torch.Generator) -> torch.Tensor:
    row = _normal(call, generator)
    row[call.keys // 2] = torch.nan
    return row


def _infinite(call: KernelCallSpec, generator: torch.Generator) -> torch.Tensor:
    row = _normal(call, generator)
    row[call.keys // 2], row[call.keys // 3] = torch.inf, -torch.inf
    return row


_SCORES: dict[str, Callable[[KernelCallSpec, torch.Generator], torch.Tensor]] = {
    "normal": _normal,
    "constant": _constant,
    "ascending": _ascending,
    "descending": _descending,
    "plateau": _plateau,
    "underflow": _underflow,
    "few_finite": _few_finite,
    "nan": _nan,
    "infinite": _infinite,
}


def call_top_k(
    table: ScoreTable, spec: KernelCallSpec, source: KernelSource
) -> tuple[torch.Tensor, torch.Tensor]:
    """Call ``indexer_top_k_wrapper``.

    Returns:
        Picks (rows, topk) int64, and their scores (rows, topk) fp32.
    """
    wrapper = namespace().indexer_top_k_wrapper
    keywords: dict[str, Any] = {}
    if spec.deterministic and "deterministic" in inspect.signature(wrapper).parameters:
        keywords["deterministic"] = True
    result = wrapper(
        as_production(table.scores, source),
        as_production(table.lengths.to(torch.int32), source),
        table.topk,
        **keywords,
    )
    return unwrap(result["indices"]).to(torch.int64), unwrap(result["values"])


def masked_call(
    scenario: Scenario, sources: tuple[InputSource, ...], rows: int, *, attention: bool = False
) -> MaskedCall:
    """Generate the arguments of a causally masked wrapper.

    Args:
        scenario: Its geometry and ``kernel_call``.
        sources: One generator for each entry of the batch.
        rows: Query rows of each entry.
        attention: Heads and depth of the attention instead of the indexer's.
    """
    model, call = scenario.model, scenario.kernel_call
    heads = model.num_attention_heads if attention else model.dsa_indexer_n_heads
    depth = model.dsa_indexer_head_dim
    if attention:
        depth = model.kv_lora_rank + model.qk_pos_emb_head_dim

    def drawn(name: str, count: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.stack([s.rows(name, shape, [(0, count)], scale) for s in sources])

    offsets = torch.full((len(sources),), call.position, dtype=torch.int32)
    return MaskedCall(
        q=drawn("q", rows, heads, depth),
        k=drawn("k", call.keys, depth),
        weights=drawn("weights", rows, heads, scale=indexer_weight_scale(heads, depth)),
        limits=(torch.arange(rows) + call.position + 1).clamp(max=call.keys),
        offsets=offsets if call.offsets == "given" else None,
        scale=(model.qk_head_dim + model.qk_pos_emb_head_dim) ** -0.5,
    )


def call_forward(case: MaskedCall, source: KernelSource) -> torch.Tensor:
    """Call ``indexer_forward_wrapper``; returns scores (B, R, N) fp32."""
    result = namespace().indexer_forward_wrapper(
        *_operands(case, source),
        ratio=1,
        qhead_per_kv_head=case.q.size(2),
        sm_scale=1.0,
        **_offsets(case, source),
    )
    return unwrap(result["scores"])


def call_forward_top_k(case: MaskedCall, topk: int, source: KernelSource) -> torch.Tensor:
    """Call ``indexer_forward_top_k_wrapper`` for local ids; returns (B, R, topk) int64."""
    result = namespace().indexer_forward_top_k_wrapper(
        *_operands(case, source),
        topk,
        ratio=1,
        qhead_per_kv_head=case.q.size(2),
        topk_indices_global=False,
        **_offsets(case, source),
    )
    return unwrap(result["indices"]).to(torch.int64)


def call_dense_recompute(case: MaskedCall, lse: torch.Tensor, source: KernelSource) -> torch.Tensor:
    """Call ``dense_attn_score_recompute_wrapper``; ``lse`` is (B, R, H); returns (B, R, N) fp32."""
    q, k, _weights = _operands(case, source)
    result = namespace().dense_attn_score_recompute_wrapper(
        q, k, as_production(lse, source), case.scale, ratio=1, **_offsets(case, source)
    )
    return unwrap(result["out"])


def _operands(case: MaskedCall, source: KernelSource) -> tuple[torch.Tensor, ...]:
    tensors = (case.q, case.k.unsqueeze(2), case.weights)
    return tuple(as_production(tensor, source) for tensor in tensors)


def _offsets(case: MaskedCall, source: KernelSource) -> dict[str, torch.Tensor]:
    if case.offsets is None:
        return {}
    return {"q_causal_offsets": as_production(case.offsets, source)}
