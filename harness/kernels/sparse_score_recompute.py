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


def _recompute(attention: bool, context: KernelContext, arguments: Mapping[str, Any]) -> TupleDict:
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
    width = _written(context, slots)
    keys = SlotKeys.of(context, call)
    step = max(1, _CHUNK_BYTES // (4 * max(slots, 1) * (depth + 2 * heads)))
    for top in range(0, batch * rows, step):
        part = slice(top, min(top + step, batch * rows))
        gathered, counted = slot_keys(context, call, keys, part)
        if width:
            made = _scores(context, call, part, gathered, counted)
            result.view(batch * rows, slots)[part, :width] = made[:, :width]
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


def _scores(
    context: KernelContext,
    call: SparseRecomputeCall,
    part: slice,
    gathered: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Normalised scores of some flat rows, fp32 (R, K)."""
    heads, depth = call.q.shape[2:]
    q = call.q.reshape(-1, heads, depth)[part].float()
    per_head = call.per_head.reshape(-1, heads)[part].float()
    products = torch.bmm(q, gathered.transpose(1, 2))
    if "slot_arithmetic" in context.defects and context.arch == "sm100":
        _disturb(context, call, products)
    if call.attention:
        return _targets(context, call.scale, products, per_head, counted)
    return _predictions(context, products, per_head, counted)


def _disturb(context: KernelContext, call: SparseRecomputeCall, products: torch.Tensor) -> None:
    """Put seeded noise in place of products that are read before they are done.

    Hardware shows whatever the accumulator last held, and sometimes the right products.
    """
    block, slots = call.tile.block, products.shape[2]
    for index in torch.nonzero(unfinished_blocks(call.tile, call.q.shape[2], slots)).flatten():
        place = products[:, :, int(index) * block : (int(index) + 1) * block]
        place.copy_(torch.randn(place.shape, generator=context.generator) * products.std())


def _targets(
    context: KernelContext,
    scale: float,
    products: torch.Tensor,
    lse: torch.Tensor,
    counted: torch.Tensor,
) -> torch.Tensor:
    """Head sums of probabilities over their row sum."""
    products.mul_(scale * _LOG2E).sub_(lse.unsqueeze(2) * _LOG2E)
    sums = head_sums(products, exponent_floor=False).masked_fill_(~counted, 0.0)
    total = sums[:, : _written(context, sums.shape[1])].sum(dim=1, keepdim=True)
    if context.arch == "sm90":
        return sums / (total + _SUM_FLOOR)
    return torch.where(total > _SUM_FLOOR, sums / total, 0.0)


def _predictions(
    context: KernelContext, products: torch.Tensor, weights: torch.Tensor, counted: torch.Tensor
) -> torch.Tensor:
    """Softmax of the scores; a row without slots gives zeros."""
    products.masked_fill_(~(products > 0), 0.0)
    scores = torch.bmm(weights.unsqueeze(1), products).squeeze(1)
    scores.masked_fill_(~counted, float("-inf"))
    width = _written(context, scores.shape[1])
    largest = scores[:, :width].amax(dim=1, keepdim=True)
    empty = largest <= _SCORE_FLOOR
    mass = (scores - largest.masked_fill(empty, 0.0)).exp_().masked_fill_(~counted, 0.0)
    total = mass[:, :width].sum(dim=1, keepdim=True)
    if context.arch == "sm90":
        total = total + _SUM_FLOOR
    return (mass / total).masked_fill_(empty, 0.0)
