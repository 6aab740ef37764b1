"""``sparse_attn_score_recompute_wrapper`` and ``sparse_indexer_score_recompute_wrapper``.

Attention: head sums of exp(scale * q . k - lse) over the selected keys, divided by their row sum.
Indexer: softmax of the indexer scores over the selected keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from harness.kernels.context import KernelContext
from harness.kernels.poison import poisoned
from harness.kernels.probabilities import head_sums
from harness.kernels.recompute_call import SparseRecomputeCall, prepare_recompute
from harness.kernels.recompute_slots import SlotKeys, slot_keys
from harness.kernels.recompute_tiles import unfinished_blocks
from harness.kernels.tuple_dict import TupleDict

_CHUNK_BYTES = 48 << 20
"""Gathered keys and products held at a time."""
_SUM_FLOOR = 1e-10
_SCORE_FLOOR = -1e30
_SM90_STEP = 128
_LOG2E = math.log2(math.e)


def _recompute(
    attention: bool, context: KernelContext, arguments: Mapping[str, Any]
) -> TupleDict:
    """Model one call of either wrapper.

    Returns:
        ``target`` (attention) or ``predict`` (indexer): fp32 (B, Sq, K).

    Raises:
        AddressFault: An unchecked id, or a length above the slots, leads outside an allocation.
        KernelHang: Slot arithmetic, see ``recompute_tiles``.
        CompileFailure: Heads or lengths that the release cannot compile.
        ValueError, AssertionError: As the release refuses arguments.
    """
    call = prepare_recompute(context, arguments, attention=attention)
    batch, rows, heads, depth = call.q.shape
    slots = call.ids.shape[2]
    result = _fresh(context, call)
    flat = result.view(-1, slots)
    q = call.q.reshape(-1, heads, depth)
    per_head = call.per_head.reshape(-1, heads)
    keys = SlotKeys.of(context, call)
    step = max(1, _CHUNK_BYTES // (4 * max(slots, 1) * (depth + 2 * heads)))
    for top in range(0, batch * rows, step):
        part = slice(top, min(top + step, batch * rows))
        gathered, counted = slot_keys(context, call, keys, part)
        products = torch.bmm(q[part].float(), gathered.transpose(1, 2))
        if "slot_arithmetic" in context.defects and context.arch == "sm100":
            _disturb(context, call, products)
        made = (
            _targets(context, call, products, per_head[part], counted)
            if attention
            else _predictions(context, products, per_head[part], counted)
        )
        width = _written(context, slots)
        flat[part, :width] = made[:, :width]
    like, name = arguments[call.like], "target" if attention else "predict"
    if call.out is None:
        return TupleDict(**{name: context.hook.wrap_like(result, like)})
    context.hook.unwrap(call.out).copy_(result)
    return TupleDict(**{name: call.out})


sparse_attention_recompute = partial(_recompute, True)
sparse_indexer_recompute = partial(_recompute, False)


def _fresh(context: KernelContext, call: SparseRecomputeCall) -> torch.Tensor:
    """Result before the launch: old contents, zeros or fresh memory."""
    shape = tuple(call.ids.shape)
    if call.out is not None:
        return context.hook.unwrap(call.out).clone(memory_format=torch.contiguous_format)
    if context.arch == "sm90" and not call.rules.unwritten_slots:
        return torch.zeros(shape)
    return poisoned(shape, torch.float32)


def _written(context: KernelContext, slots: int) -> int:
    """Slots that are computed: SM90 hands each of 128 threads an equal share (``tail_slots``)."""
    if context.arch == "sm90" and "tail_slots" in context.defects:
        return slots // _SM90_STEP * _SM90_STEP
    return slots


def _disturb(context: KernelContext, call: SparseRecomputeCall, products: torch.Tensor) -> None:
    """Put what an unfinished accumulator holds in place of the products of its block.

    That is the block before it in the same accumulator, or another row's (seeded noise) at first.
    """
    tile, slots = call.tile, products.shape[2]
    wrong = unfinished_blocks(tile, call.q.shape[2], slots)
    if not bool(wrong.any()):
        return
    noise = torch.randn(products.shape[:2] + (tile.block,), generator=context.generator)
    noise *= products.std()
    for block in torch.nonzero(wrong).flatten().tolist():
        products[:, :, block * tile.block : (block + 1) * tile.block] = noise


def _targets(
    context: KernelContext,
    call: SparseRecomputeCall,
    products: torch.Tensor,
    lse: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Normalised head sums, fp32 (R, K)."""
    products.mul_(call.scale * _LOG2E).sub_(lse.float().unsqueeze(2) * _LOG2E)
    sums = head_sums(products, exponent_floor=False).masked_fill_(~counted, 0.0)
    total = _computed(context, sums).sum(dim=1, keepdim=True)
    if context.arch == "sm90":
        return sums / (total + _SUM_FLOOR)
    return torch.where(total > _SUM_FLOOR, sums / total, 0.0)


def _predictions(
    context: KernelContext, products: torch.Tensor, weights: torch.Tensor, counted: torch.Tensor
) -> torch.Tensor:
    """Softmax of the scores, fp32 (R, K); a row without slots gives zeros."""
    closed = ~(products > 0)
    products.masked_fill_(closed, 0.0)
    scores = torch.bmm(weights.float().unsqueeze(1), products).squeeze(1)
    scores.masked_fill_(~counted, float("-inf"))
    if scores.shape[1] == 0:
        return scores
    largest = _computed(context, scores).amax(dim=1, keepdim=True) if scores.numel() else scores
    empty = largest <= _SCORE_FLOOR
    weights_of = (scores - largest.masked_fill(empty, 0.0)).exp_().masked_fill_(~counted, 0.0)
    total = _computed(context, weights_of).sum(dim=1, keepdim=True)
    if context.arch == "sm90":
        total = total + _SUM_FLOOR
    return (weights_of / total).masked_fill_(empty, 0.0)


def _computed(context: KernelContext, values: torch.Tensor) -> torch.Tensor:
    """Slots that take part in the normaliser."""
    width = _written(context, values.shape[1])
    return values[:, :width] if width else values[:, :1] * 0.0
