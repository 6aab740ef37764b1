"""Validated form of a sparse recompute call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.kernels.context import KernelContext
from harness.kernels.problem import require
from harness.kernels.recompute_heads import check_single_row, check_sm90_heads
from harness.kernels.recompute_tiles import Tile, attention_tile, check_tile, indexer_tile
from harness.kernels.rules import RecomputeRules

_ATTENTION = ("sparse_attn_score_recompute_wrapper", "q_attn", "k_attn", "lse")
_INDEXER = ("sparse_indexer_score_recompute_wrapper", "q_indexer", "k_indexer", "weights")
_SM90_TILE = Tile(block=64, split=0, compact=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseRecomputeCall:
    """One call.

    Attributes:
        name: Wrapper name.
        like: Argument whose tensor type a fresh result takes.
        attention: Attention probabilities (else indexer scores).
        q: (B, Sq, H, D) bf16.
        k: (B, Sk, D) bf16.
        per_head: (B, Sq, H): lse fp32, or weights bf16.
        ids: (B, Sq, K) int32.
        lengths: (B, Sq) int32, None when not given.
        ids_global: Ids are b * Sk + local.
        out: Caller's buffer.
        scale: Factor on the attention products.
        tile: Kernel and its blocks (meaningful on SM100).
        rules: Of the release and architecture.
    """

    name: str
    like: str
    attention: bool
    q: torch.Tensor
    k: torch.Tensor
    per_head: torch.Tensor
    ids: torch.Tensor
    lengths: torch.Tensor | None
    ids_global: bool
    out: torch.Tensor | None
    scale: float
    tile: Tile
    rules: RecomputeRules


def prepare_recompute(
    context: KernelContext, arguments: Mapping[str, Any], *, attention: bool
) -> SparseRecomputeCall:
    """Validate a call and choose its kernel.

    Raises:
        KernelHang, CompileFailure: See ``recompute_tiles``.
        ValueError, AssertionError: As the release refuses arguments.
    """
    name, q_name, k_name, aux_name = _ATTENTION if attention else _INDEXER
    rules = context.release.recompute[context.arch]
    q, k, aux, ids = (
        context.hook.unwrap(arguments[key]) for key in (q_name, k_name, aux_name, "topk_indices")
    )
    lengths = arguments["topk_length"]
    if lengths is not None:
        lengths = context.hook.unwrap(lengths)
    if rules.converts_ids:
        ids = ids.to(torch.int32)
        lengths = None if lengths is None else lengths.to(torch.int32)
    _check_dtypes(q, k, aux, ids, attention)
    _check_shapes(arguments, q, k, aux, ids, lengths)
    _check_out(context, arguments, tuple(ids.shape))
    return SparseRecomputeCall(
        name=name,
        like=q_name,
        attention=attention,
        q=q,
        k=k,
        per_head=aux,
        ids=ids.contiguous(),
        lengths=None if lengths is None else lengths.contiguous(),
        ids_global=bool(arguments["topk_indices_global"]),
        out=arguments["out"],
        scale=float(arguments["softmax_scale"]) if attention else 1.0,
        tile=_tile(context, rules, name, q, ids, lengths is not None, attention),
        rules=rules,
    )


def _tile(
    context: KernelContext,
    rules: RecomputeRules,
    name: str,
    q: torch.Tensor,
    ids: torch.Tensor,
    has_length: bool,
    attention: bool,
) -> Tile:
    heads, depth, slots = q.shape[2], q.shape[3], ids.shape[2]
    if context.arch == "sm90":
        check_sm90_heads(heads, rules.odd_heads if attention else ())
        check_single_row(q.shape[1], context.defects)
        return _SM90_TILE
    if not attention:
        tile = indexer_tile(has_length)
        # The load that fails to compile with lengths is the attention epilogue's.
        defects = context.defects - {"d317"}
    else:
        tile = attention_tile(rules, depth=depth, heads=heads, slots=slots, has_length=has_length)
        defects = context.defects
    check_tile(name, tile, depth=depth, heads=heads, slots=slots, defects=defects)
    return tile


def _check_dtypes(
    q: torch.Tensor, k: torch.Tensor, aux: torch.Tensor, ids: torch.Tensor, attention: bool
) -> None:
    per_head = torch.float32 if attention else torch.bfloat16
    for label, tensor, dtype in (
        ("queries", q, torch.bfloat16),
        ("keys", k, torch.bfloat16),
        ("lse" if attention else "weights", aux, per_head),
        ("topk_indices", ids, torch.int32),
    ):
        require(tensor.dtype == dtype, ValueError, f"{label} are {tensor.dtype}; expected {dtype}")


def _check_shapes(
    arguments: Mapping[str, Any],
    q: torch.Tensor,
    k: torch.Tensor,
    aux: torch.Tensor,
    ids: torch.Tensor,
    lengths: torch.Tensor | None,
) -> None:
    axes = (q.ndim, k.ndim, aux.ndim, ids.ndim)
    require(
        axes == (4, 3, 3, 3),
        ValueError,
        f"queries, keys, lse or weights, and ids have {axes} axes; expected (4, 3, 3, 3)",
    )
    batch, rows, heads, depth = q.shape
    require(
        k.shape[0] == batch and k.shape[2] == depth,
        ValueError,
        f"queries {tuple(q.shape)} and keys {tuple(k.shape)} disagree",
    )
    require(
        tuple(aux.shape) == (batch, rows, heads) and tuple(ids.shape[:2]) == (batch, rows),
        ValueError,
        f"lse or weights {tuple(aux.shape)} and ids {tuple(ids.shape)}; expected "
        f"{(batch, rows, heads)} and ({batch}, {rows}, K)",
    )
    per_key = arguments["qhead_per_kv_head"]
    require(
        per_key in (None, heads), ValueError, f"qhead_per_kv_head is {per_key}; expected {heads}"
    )
    require(
        lengths is None or (lengths.dtype == torch.int32 and tuple(lengths.shape) == (batch, rows)),
        ValueError,
        f"topk_length must be int32 {(batch, rows)}",
    )


def _check_out(
    context: KernelContext, arguments: Mapping[str, Any], shape: tuple[int, ...]
) -> None:
    if arguments["out"] is None:
        return
    out = context.hook.unwrap(arguments["out"])
    require(
        out.dtype == torch.float32 and tuple(out.shape) == shape,
        ValueError,
        f"out is {out.dtype} {tuple(out.shape)}; expected fp32 {shape}",
    )
