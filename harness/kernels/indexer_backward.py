"""``indexer_backward_wrapper``: gradients of the indexer over its selected keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.kernels.backward_call import SparseBackwardCall, check_late, prepare_sparse
from harness.kernels.context import KernelContext
from harness.kernels.indexer_gradient import slot_gradients
from harness.kernels.key_rows import Accumulator, KeyRows, Touched
from harness.kernels.outputs import deliver
from harness.kernels.score_gradient import probability_signal
from harness.kernels.tuple_dict import TupleDict

NAME = "indexer_backward_wrapper"
_CHUNK_BYTES = 48 << 20
"""Gathered keys and products held at a time."""


def indexer_backward(context: KernelContext, arguments: Mapping[str, Any]) -> TupleDict:
    """Model one call.

    Returns:
        ``d_index_q`` and ``d_weights`` in bf16, ``d_index_k`` in bf16 or fp32. Side effects:
        ``attn_score`` holds the gradient signal afterwards, and ``index_score`` the row sums where
        the release does so.

    Every id that a release takes lies inside the keys; those of another batch are findings.

    Raises:
        ValueError, TypeError, AssertionError, NotImplementedError, RuntimeError: As the release
            refuses arguments.
    """
    call = prepare_sparse(context, arguments)
    _overwrite_scores(call)
    # Earlier releases notice what follows only now, with the scores gone.
    check_late(context, arguments)
    gradients = _gradients(context, call)
    old = call.outputs["d_index_k"]
    keys = gradients["d_index_k"].view(call.k.shape)
    if old is not None and old.dtype == torch.float32 and "unzeroed_dk" in context.defects:
        keys = keys + context.hook.unwrap(old)
    gradients["d_index_k"] = keys
    return deliver(context, arguments["index_q"], gradients, call.outputs, call.dtypes)


def _overwrite_scores(call: SparseBackwardCall) -> None:
    """First stage, in place, some rows at a time."""
    batch, rows, width = call.target.shape
    step = max(1, _CHUNK_BYTES // (16 * max(width, 1)))
    targets, predicts = (t.view(batch * rows, width) for t in (call.target, call.predict))
    for top in range(0, targets.shape[0], step):
        part = slice(top, top + step)
        signal, total = probability_signal(targets[part], predicts[part], call.scale)
        targets[part] = signal
        if call.overwrites_predict:
            predicts[part] = total.expand_as(signal)


def _gradients(context: KernelContext, call: SparseBackwardCall) -> dict[str, torch.Tensor]:
    """Second stage: fp32 gradients by output name."""
    batch, rows, heads, depth = call.q.shape
    slots, keys = call.ids.shape[-1], call.k.shape[1]
    bounds = context.bounds(NAME)
    reader = KeyRows.of("index_k", call.k.reshape(batch * keys, depth), bounds)
    sums = Accumulator.of("d_index_k", batch * keys, depth, bounds)
    d_q = torch.empty(batch * rows, heads, depth)
    d_w = torch.empty(batch * rows, heads)
    flat_q, flat_w = call.q.reshape(-1, heads, depth), call.w.reshape(-1, heads)
    signals, ids = (t.reshape(batch * rows, slots) for t in (call.target, call.ids))
    step = max(1, _CHUNK_BYTES // (4 * max(slots, 1) * (2 * depth + 2 * heads)))
    for top in range(0, batch * rows, step):
        part = slice(top, min(top + step, batch * rows))
        owner = torch.arange(part.start, part.stop).div(rows, rounding_mode="floor").unsqueeze(1)
        touched = _touched(context, call, ids[part].to(torch.int64), owner, top)
        made = slot_gradients(
            flat_q[part].float(),
            reader.gather(touched),
            flat_w[part].float(),
            signals[part],
            call.sm_scale,
            two_terms=call.two_terms,
        )
        d_q[part], d_w[part] = made.queries, made.weights
        sums.add(touched, made.keys)
    return {
        "d_index_q": d_q.view(call.q.shape),
        "d_weights": d_w.view(call.w.shape),
        "d_index_k": sums.result,
    }


def _touched(
    context: KernelContext,
    call: SparseBackwardCall,
    ids: torch.Tensor,
    owner: torch.Tensor,
    first: int,
) -> Touched:
    """Turn ids into key rows, rejecting what the release rejects.

    Args:
        context: Architecture and defects.
        call: Shapes and id meaning.
        ids: int64 (R, K).
        owner: int64 (R, 1), batch of each row.
        first: Number of the first row.
    """
    batch, keys = call.k.shape[:2]
    low = owner * keys
    if call.ids_global:
        rows, mask = ids, (ids >= 0) & (ids < batch * keys)
        if "foreign_ids" not in context.defects or call.checks_owner:
            mask &= (ids >= low) & (ids < low + keys)
    else:
        rows = ids + low
        wide = "d550" in context.defects and not call.two_terms
        mask = (ids >= 0) & (rows < batch * keys if wide else ids < keys)
    return Touched(rows=rows, mask=mask, low=low, high=low + keys, first=first)
