"""``dense_attn_score_recompute_wrapper`` and ``dense_indexer_score_recompute_wrapper``.

Attention: out = sum_h exp(scale * q . k - lse_h), denominator its row sum. Indexer: the score of
the forward, denominator its row logsumexp. Both over the keys that a row may see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from harness.kernels.addresses import Operand
from harness.kernels.context import KernelContext, NotModelledError
from harness.kernels.dense_problem import (
    DenseLayout,
    bshd_layout,
    computed_limits,
    is_thd,
    segment_keys,
    thd_layout,
)
from harness.kernels.indexer_forward import log_sum_exp
from harness.kernels.limits import Segment
from harness.kernels.masked_cells import empty_scores, mask_rows
from harness.kernels.poison import poisoned
from harness.kernels.probabilities import fill_probabilities
from harness.kernels.problem import require, require_bf16_path
from harness.kernels.recompute_heads import check_dense_heads, check_single_row
from harness.kernels.rules import RecomputeRules
from harness.kernels.scores import fill_scores
from harness.kernels.tuple_dict import TupleDict

_MINUS_INF = float("-inf")
_CHUNK_ROWS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class _Call:
    """One call, flat: q (T, H, D), k (Tk, D), per_head (T, H): lse fp32, or weights bf16."""

    name: str
    attention: bool
    q: torch.Tensor
    k: torch.Tensor
    per_head: torch.Tensor
    scale: float
    layout: DenseLayout
    rules: RecomputeRules
    exponent_floor: bool


def _recompute(
    name: str, per_head: str, scale: str, context: KernelContext, arguments: Mapping[str, Any]
) -> TupleDict:
    """Model one call of either wrapper.

    Returns:
        ``out`` fp32 (B, Sq, Sk) or (T, max_seqlen_k) with segment-local columns; ``denom`` fp32
        (B, Sq) or (T,). Masked cells hold what ``MaskedCells`` of the release says.

    Raises:
        NotImplementedError: A precision other than bf16 (not modelled).
        AddressFault: Prefix sums lead outside a tensor's allocation.
        ValueError, AssertionError: As the release refuses arguments.
    """
    call = _prepare(name, per_head, float(arguments[scale]), context, arguments)
    shape = (*call.layout.leading, call.layout.width)
    out = _buffer(context, arguments, "out", shape)
    denom = _buffer(context, arguments, "denom_out", call.layout.leading)
    scores = empty_scores(call.rules, context.arch, out, (call.layout.rows, call.layout.width))
    sums = (
        poisoned((call.layout.rows,), torch.float32)
        if denom is None
        else denom.clone().reshape(call.layout.rows)
    )
    for segment in call.layout.segments:
        _segment(context, call, segment, scores, sums)
    made = {"out": scores.view(shape), "denom": sums.view(call.layout.leading)}
    results: dict[str, torch.Tensor] = {}
    for result, given in (("out", "out"), ("denom", "denom_out")):
        target = arguments[given]
        if target is None:
            results[result] = context.hook.wrap_like(made[result], arguments["q"])
        else:
            context.hook.unwrap(target).copy_(made[result])
            results[result] = target
    return TupleDict(**results)


dense_attention_recompute = partial(
    _recompute, "dense_attn_score_recompute_wrapper", "lse", "softmax_scale"
)
dense_indexer_recompute = partial(
    _recompute, "dense_indexer_score_recompute_wrapper", "weights", "sm_scale"
)


def _prepare(
    name: str,
    per_head: str,
    scale: float,
    context: KernelContext,
    arguments: Mapping[str, Any],
) -> _Call:
    rules = context.release.recompute[context.arch]
    q, k, aux = (context.hook.unwrap(arguments[key]) for key in ("q", "k", per_head))
    thd = is_thd(arguments)
    _check_axes(q, k, aux, thd, per_head)
    scaled = any(arguments.get(key) is not None for key in ("q_scale", "k_scale"))
    require(
        not scaled or context.arch == "sm100", NotImplementedError, "block scales are SM100-only"
    )
    require_bf16_path(arguments)
    _check_dtypes(q, k, aux, per_head)
    ratio = int(arguments["ratio"])
    require(ratio >= 1, ValueError, f"ratio is {ratio}; expected at least 1")
    _check_shapes(arguments, q, k, aux, thd, per_head)
    heads = q.shape[-2]
    check_dense_heads(name, context.arch, heads, attention=per_head == "lse")
    layout = _layout(context, arguments, q, k, thd)
    return _Call(
        name=name,
        attention=per_head == "lse",
        q=q.reshape(layout.rows, heads, q.shape[-1]),
        k=k.reshape(-1, k.shape[-1]),
        per_head=aux.reshape(layout.rows, heads),
        scale=scale,
        layout=layout,
        rules=rules,
        exponent_floor=rules.exponent_floor and heads != 64,
    )


def _layout(
    context: KernelContext,
    arguments: Mapping[str, Any],
    q: torch.Tensor,
    k: torch.Tensor,
    thd: bool,
) -> DenseLayout:
    if not thd:
        return bshd_layout(
            context, arguments, batch=q.shape[0], rows=q.shape[1], keys=k.shape[1], device=q.device
        )
    strict = context.arch == "sm100" and not context.release.recompute[context.arch].converts_ids
    return thd_layout(
        context,
        arguments,
        rows=q.shape[0],
        device=q.device,
        prefix_error=AssertionError if strict else None,
    )


def _check_axes(q: torch.Tensor, k: torch.Tensor, aux: torch.Tensor, thd: bool, name: str) -> None:
    axes, expected = (q.ndim, k.ndim, aux.ndim), (3, 3, 2) if thd else (4, 4, 3)
    require(
        axes == expected,
        ValueError,
        f"q, k and {name} have {axes} axes; expected {expected}",
    )


def _check_dtypes(q: torch.Tensor, k: torch.Tensor, aux: torch.Tensor, name: str) -> None:
    wanted = torch.float32 if name == "lse" else torch.bfloat16
    for label, tensor, dtype in (
        ("q", q, torch.bfloat16),
        ("k", k, torch.bfloat16),
        (name, aux, wanted),
    ):
        require(tensor.dtype == dtype, ValueError, f"{label} is {tensor.dtype}; expected {dtype}")


def _check_shapes(
    arguments: Mapping[str, Any],
    q: torch.Tensor,
    k: torch.Tensor,
    aux: torch.Tensor,
    thd: bool,
    name: str,
) -> None:
    heads, key_heads = q.shape[-2], k.shape[-2]
    require(
        q.shape[-1] == k.shape[-1] and (thd or q.shape[0] == k.shape[0]),
        ValueError,
        f"q {tuple(q.shape)} and k {tuple(k.shape)} disagree",
    )
    require(
        tuple(aux.shape) == tuple(q.shape[:-1]),
        ValueError,
        f"{name} has shape {tuple(aux.shape)}; expected {tuple(q.shape[:-1])}",
    )
    require(
        key_heads > 0 and heads % max(key_heads, 1) == 0,
        ValueError,
        f"{heads} query heads over {key_heads} key heads",
    )
    per_key = arguments["qhead_per_kv_head"]
    require(
        per_key is None or heads == key_heads * per_key,
        ValueError,
        f"qhead_per_kv_head is {per_key}; expected {heads} heads / {key_heads} key heads",
    )
    require(key_heads == 1, NotModelledError, f"{key_heads} key heads; only one is modelled")


def _buffer(
    context: KernelContext, arguments: Mapping[str, Any], name: str, shape: tuple[int, ...]
) -> torch.Tensor | None:
    """Judge a caller's buffer.

    Raises:
        ValueError: Dtype or shape.
    """
    if arguments[name] is None:
        return None
    tensor = context.hook.unwrap(arguments[name])
    require(
        tensor.dtype == torch.float32 and tuple(tensor.shape) == shape,
        ValueError,
        f"{name} is {tensor.dtype} {tuple(tensor.shape)}; expected fp32 {shape}",
    )
    return tensor


def _segment(
    context: KernelContext,
    call: _Call,
    segment: Segment,
    scores: torch.Tensor,
    sums: torch.Tensor,
) -> None:
    """Scores, mask and denominators of one segment's rows."""
    packed_on_host = context.arch == "sm90" and call.layout.thd
    limits = computed_limits(context, call.layout, segment, sized_by_maximum=not packed_on_host)
    if limits.numel() == 0 or (packed_on_host and segment.k_count <= 0):
        return
    bounds = context.bounds(call.name)
    bounds.touch_rows(Operand.of("q", call.q), first_row=segment.q_start, count=limits.numel())
    bounds.touch_rows(Operand.of("k", call.k), first_row=segment.k_start, count=int(limits.max()))
    if context.arch == "sm90" and not call.rules.repairs_single_row:
        check_single_row(segment.q_count, context.defects)
    limits = limits[: call.layout.rows - segment.q_start]
    keys = segment_keys(call.k, segment, int(limits.max()))
    for top in range(0, limits.numel(), _CHUNK_ROWS):
        chunk = limits[top : top + _CHUNK_ROWS]
        first = segment.q_start + top
        rows = slice(first, first + chunk.numel())
        _rows(call, rows, chunk, keys, segment, scores, sums)


def _rows(
    call: _Call,
    rows: slice,
    limits: torch.Tensor,
    keys: torch.Tensor,
    segment: Segment,
    scores: torch.Tensor,
    sums: torch.Tensor,
) -> None:
    seen = int(limits.max())
    found = torch.full((limits.numel(), seen), _MINUS_INF)
    if call.attention:
        found.zero_()
        fill_probabilities(
            found,
            call.q[rows],
            keys,
            call.per_head[rows],
            limits,
            call.scale,
            exponent_floor=call.exponent_floor,
        )
        sums[rows] = found.sum(dim=1)
    else:
        fill_scores(found, call.q[rows], keys, call.per_head[rows], limits, call.scale)
        sums[rows] = log_sum_exp(found)
    mask_rows(call.rules, scores[rows], limits, max(segment.k_count, 0))
    visible = torch.arange(seen) < limits.unsqueeze(1)
    target = scores[rows, :seen]
    target.copy_(torch.where(visible, found, target))
