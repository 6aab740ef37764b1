"""Level ``kernel``: one wrapper of the cuDNN DSA namespace, called on its own.

For cases that Megatron's caller cannot produce: an id past the keys, a row without keys, a table
wider than the keys. The namespace is the one behind Megatron's caller, real or modelled, so that
calls are observed and kernels chosen as at every other level.
"""

from __future__ import annotations

import importlib
import inspect
import zlib
from dataclasses import dataclass
from typing import Any

import torch

from harness.kernels.wrapping import unwrap
from harness.production.backend import KernelSource, as_production
from harness.production.inputs import InputSource, indexer_weight_scale
from harness.scenario.spec import KernelCallSpec, ModelSpec, Scenario

_CALLER = "megatron.core.transformer.experimental_attention_variant.dsa_cudnn_kernels"
_OLD_CONTENTS = 3.0
"""What a filled gradient buffer holds: far from any gradient here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallCase:
    """Arguments of one call, plain CPU tensors, and what of them counts.

    Attributes:
        query: (B, Sq, H, D) of the attention, with ``key`` (B, Sk, D).
        grad_output: (B, Sq, H, 512).
        indexer: q (B, Sq, Hi, Di), k (B, Sk, Di) and weights (B, Sq, Hi).
        selection: (B, Sq, K) int64 local ids before any edit, -1 for an empty slot.
        counted: The same after edits: ids that are no key, and slots behind a length, are -1.
        ids: (B, Sq, K) int32 local ids as the kernel is given them.
        lengths: (B, Sq) int32, None where none are given.
        scale: Softmax scale.
    """

    query: torch.Tensor
    key: torch.Tensor
    grad_output: torch.Tensor
    indexer: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    selection: torch.Tensor
    counted: torch.Tensor
    ids: torch.Tensor
    lengths: torch.Tensor | None
    scale: float

    @property
    def batch(self) -> int:
        """Entries of the batch."""
        return self.ids.size(0)


def call_case(scenario: Scenario, sources: tuple[InputSource, ...], rows: int) -> CallCase:
    """Generate the arguments of a call.

    Args:
        scenario: Its geometry and ``kernel_call``.
        sources: One generator for each entry of the batch.
        rows: Query rows of each entry.
    """
    model, call = scenario.model, scenario.kernel_call
    selection = torch.stack([_selection(model, call, source, rows) for source in sources])
    ids = selection.clone()
    if call.empty_slots == "zero":
        ids.clamp_(min=0)
    counted = selection.clone()
    lengths = _lengths(call, selection)
    for edit in call.edits:
        if edit.slot is not None and edit.id is not None:
            ids[edit.batch, edit.row, edit.slot] = edit.id
            is_key = 0 <= edit.id < call.keys
            counted[edit.batch, edit.row, edit.slot] = edit.id if is_key else -1
        elif edit.length is not None and lengths is not None:
            lengths[edit.batch, edit.row] = edit.length
    if lengths is not None:
        behind = torch.arange(ids.size(2)) >= lengths.unsqueeze(2)
        counted.masked_fill_(behind, -1)
    return CallCase(
        **_tensors(model, call, sources, rows),
        selection=selection,
        counted=counted,
        ids=ids.to(torch.int32),
        lengths=None if lengths is None else lengths.to(torch.int32),
        scale=(model.qk_head_dim + model.qk_pos_emb_head_dim) ** -0.5,
    )


def _tensors(
    model: ModelSpec, call: KernelCallSpec, sources: tuple[InputSource, ...], rows: int
) -> dict[str, Any]:
    heads, index_heads = model.num_attention_heads, model.dsa_indexer_n_heads
    depth = model.kv_lora_rank + model.qk_pos_emb_head_dim
    index_depth = model.dsa_indexer_head_dim

    def drawn(name: str, count: int, *shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.stack([s.rows(name, shape, [(0, count)], scale) for s in sources])

    weight_scale = indexer_weight_scale(index_heads, index_depth)
    return {
        "query": drawn("query", rows, heads, depth),
        "key": drawn("key", call.keys, depth),
        "grad_output": drawn("upstream", rows, heads, model.kv_lora_rank),
        "indexer": (
            drawn("q", rows, index_heads, index_depth),
            drawn("k", call.keys, index_depth),
            drawn("weights", rows, index_heads, scale=weight_scale),
        ),
    }


def _selection(
    model: ModelSpec, call: KernelCallSpec, source: InputSource, rows: int
) -> torch.Tensor:
    """Distinct keys for each row of one entry, (rows, slots) int64, -1 elsewhere."""
    width = call.width(model.dsa_indexer_topk)
    count = call.count(model.dsa_indexer_topk)
    key = f"selection:{source.seed}:{source.microbatch}:{source.stream}"
    generator = torch.Generator().manual_seed(zlib.crc32(key.encode()))
    table = torch.full((rows, width), -1, dtype=torch.int64)
    first = 0 if call.placement == "front" else width - count
    for row in range(rows):
        order = torch.randperm(call.keys, generator=generator)
        table[row, first : first + count] = order[:count]
    return table


def _lengths(call: KernelCallSpec, selection: torch.Tensor) -> torch.Tensor | None:
    if call.lengths == "none":
        return None
    if call.lengths == "slots":
        return torch.full(selection.shape[:2], selection.size(2), dtype=torch.int64)
    return (selection >= 0).sum(2)


def namespace() -> Any:
    """The DSA namespace behind Megatron's caller, with the kernels that are installed there."""
    return importlib.import_module(_CALLER)._cudnn_dsa


def call_indexer_backward(
    spec: KernelCallSpec,
    case: CallCase,
    source: KernelSource,
    target: torch.Tensor,
    predict: torch.Tensor,
) -> dict[str, torch.Tensor]:
    """Call ``indexer_backward_wrapper`` with a loss coefficient and upstream gradient of 1.

    Args:
        spec: The scenario's ``kernel_call``.
        case: Its arguments.
        source: Where kernels come from.
        target: (B, Sq, K) fp32; the kernel may overwrite it.
        predict: (B, Sq, K) fp32; the kernel may overwrite it.
    """
    wrapper = namespace().indexer_backward_wrapper
    keywords, ids = _id_arguments(spec, case, wrapper)
    q, k, weights = case.indexer
    if spec.d_index_k != "fresh":
        value = 0.0 if spec.d_index_k == "zeroed" else _OLD_CONTENTS
        keywords["d_index_k"] = as_production(torch.full(k.shape, value), source)
    result = wrapper(
        *(as_production(tensor, source) for tensor in (q, weights, k, target, predict, ids)),
        sm_scale=1.0,
        loss_coeff=1.0,
        grad_loss=as_production(torch.ones(()), source),
        block_I=128,
        **keywords,
    )
    return {name: unwrap(result[name]) for name in ("d_index_q", "d_weights", "d_index_k")}


def call_score_recompute(
    spec: KernelCallSpec, case: CallCase, source: KernelSource, lse: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Call ``sparse_attn_score_recompute_wrapper``; ``lse`` is (B, Sq, H) fp32."""
    wrapper = namespace().sparse_attn_score_recompute_wrapper
    keywords, ids = _id_arguments(spec, case, wrapper)
    if case.lengths is not None:
        keywords["topk_length"] = as_production(case.lengths, source)
    result = wrapper(
        *(as_production(tensor, source) for tensor in (case.query, case.key, lse, ids)),
        case.scale,
        qhead_per_kv_head=case.query.size(2),
        **keywords,
    )
    return {"target": unwrap(result["target"])}


def call_attention_backward(
    case: CallCase, source: KernelSource, out: torch.Tensor, lse: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Call ``sparse_attention_backward_wrapper`` on the flattened batch, without a sink.

    Args:
        case: Arguments of the call.
        source: Where kernels come from.
        out: (B, Sq, H, 512) bf16 forward output.
        lse: (B, Sq, H) fp32.

    Returns:
        ``dq`` (B, Sq, H, D) and ``dkv`` (B, Sk, D).
    """
    batch, rows, heads, depth = case.query.shape
    flat = (case.query, out, case.grad_output, lse)
    q, out, dout, lse = (as_production(tensor.flatten(0, 1), source) for tensor in flat)
    ids = _globalised(case).flatten(0, 1)
    lengths = None if case.lengths is None else case.lengths.flatten()
    result = namespace().sparse_attention_backward_wrapper(
        q,
        as_production(case.key.flatten(0, 1), source),
        out,
        dout,
        lse,
        as_production(torch.full((heads,), -torch.inf), source),
        as_production(ids, source),
        softmax_scale=case.scale,
        topk_length=None if lengths is None else as_production(lengths, source),
    )
    return {
        "dq": unwrap(result["dq"]).view(batch, rows, heads, depth),
        "dkv": unwrap(result["dkv"]).view(batch, -1, depth),
    }


def _id_arguments(
    spec: KernelCallSpec, case: CallCase, wrapper: Any
) -> tuple[dict[str, Any], torch.Tensor]:
    """Keyword and ids: local, unless the call says global or the release knows nothing else."""
    says = "topk_indices_global" in inspect.signature(wrapper).parameters
    if not says or spec.ids == "global":
        keywords = {"topk_indices_global": True} if says else {}
        return keywords, _globalised(case)
    return ({} if spec.ids == "default" else {"topk_indices_global": False}), case.ids


def _globalised(case: CallCase) -> torch.Tensor:
    """Ids over the flattened batch; negative ones stay what they are."""
    first = torch.arange(case.batch, dtype=torch.int32).view(-1, 1, 1) * case.key.size(1)
    return torch.where(case.ids < 0, case.ids, case.ids + first).contiguous()
