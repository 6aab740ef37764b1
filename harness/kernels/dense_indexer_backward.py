"""``dense_indexer_backward_wrapper``: gradients of the indexer over all visible keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.kernels.addresses import Bounds, Operand
from harness.kernels.context import KernelContext
from harness.kernels.dense_backward_call import DenseBackwardCall, prepare_dense
from harness.kernels.dense_problem import computed_limits, segment_keys
from harness.kernels.indexer_gradient import shared_key_gradients
from harness.kernels.limits import Segment
from harness.kernels.outputs import deliver
from harness.kernels.poison import poisoned
from harness.kernels.rules import ScoreGradient
from harness.kernels.score_gradient import raw_score_signal, torch_signal
from harness.kernels.tuple_dict import TupleDict

NAME = "dense_indexer_backward_wrapper"
_CHUNK_ELEMENTS = 1 << 23
"""Products held at a time."""


def dense_indexer_backward(context: KernelContext, arguments: Mapping[str, Any]) -> TupleDict:
    """Model one call.

    Returns:
        ``d_index_q`` and ``d_weights`` in bf16, ``d_index_k`` in bf16 or fp32. Rows that no
        segment owns keep what fresh or given buffers held. Side effect: the gradient signal is
        written into ``index_score`` (``attn_score`` where plain torch makes it); columns behind
        the last block that is read keep their scores.

    Raises:
        AddressFault: Prefix sums lead outside a tensor's allocation.
        ValueError, TypeError, RuntimeError: As the release refuses arguments.
    """
    call = prepare_dense(context, arguments)
    bounds = context.bounds(NAME)
    made = _fresh(context, call)
    keys = torch.zeros(call.k.shape)
    for segment in call.layout.segments:
        limits = computed_limits(context, call.layout, segment, sized_by_maximum=True)
        if limits.numel() == 0:
            continue
        _check_rows(call, segment, limits, bounds)
        _segment(context, call, segment, limits, made, keys)
    for staged, original in call.staged:
        original.copy_(staged)
    shapes = {"d_index_q": call.q_shape, "d_weights": call.q_shape[:-1], "d_index_k": call.k_shape}
    results = {
        "d_index_q": made["d_index_q"],
        "d_weights": made["d_weights"],
        "d_index_k": keys,
    }
    return deliver(
        context,
        arguments["index_q"],
        {name: values.view(shapes[name]) for name, values in results.items()},
        call.outputs,
        call.dtypes,
    )


def _fresh(context: KernelContext, call: DenseBackwardCall) -> dict[str, torch.Tensor]:
    """Buffers of the row gradients, holding what rows that are never written will show."""
    made = {}
    for name, shape in (("d_index_q", call.q.shape), ("d_weights", call.w.shape)):
        given = call.outputs[name]
        made[name] = (
            poisoned(tuple(shape), call.dtypes[name])
            if given is None
            else context.hook.unwrap(given).clone().reshape(shape)
        )
    return made


def _check_rows(
    call: DenseBackwardCall, segment: Segment, limits: torch.Tensor, bounds: Bounds
) -> None:
    """Judge the rows of queries and keys that a segment's prefix sums lead to."""
    bounds.touch_rows(
        Operand.of("index_q", call.q), first_row=segment.q_start, count=limits.numel()
    )
    bounds.touch_rows(
        Operand.of("index_k", call.k), first_row=segment.k_start, count=int(limits.max())
    )


def _segment(
    context: KernelContext,
    call: DenseBackwardCall,
    segment: Segment,
    limits: torch.Tensor,
    made: Mapping[str, torch.Tensor],
    keys: torch.Tensor,
) -> None:
    """Both stages for the rows of one segment, a chunk at a time."""
    limits = limits[: call.layout.rows - segment.q_start]
    widest = max(int(limits.max()), 1)
    step = max(1, _CHUNK_ELEMENTS // (widest * call.w.shape[1]))
    for top in range(0, limits.numel(), step):
        chunk = limits[top : top + step]
        first = segment.q_start + top
        rows = slice(first, first + chunk.numel())
        signal = _signal(context, call, segment, rows, chunk)
        seen = int(chunk.max())
        _keep_signal(call, segment, rows, chunk, signal)
        gradients = shared_key_gradients(
            call.q[rows].float(),
            segment_keys(call.k, segment, seen).float(),
            call.w[rows].float(),
            signal[:, :seen],
            call.sm_scale,
        )
        made["d_index_q"][rows] = gradients.queries
        made["d_weights"][rows] = gradients.weights
        target = keys[segment.k_start : segment.k_start + seen]
        target += gradients.keys[: target.shape[0]]


def _signal(
    context: KernelContext,
    call: DenseBackwardCall,
    segment: Segment,
    rows: slice,
    limits: torch.Tensor,
) -> torch.Tensor:
    """Signal of some rows, fp32 (R, width), zero in hidden cells."""
    visible = torch.arange(call.scores.shape[1]) < limits.unsqueeze(1)
    if call.rules.score_gradient is ScoreGradient.TORCH:
        count = max(segment.k_count, 0)
        signal = torch.zeros(rows.stop - rows.start, call.scores.shape[1])
        signal[:, :count] = torch_signal(
            call.attention[rows, :count], call.scores[rows, :count], visible[:, :count], call.scale
        )
        return signal
    return raw_score_signal(
        call.attention[rows],
        call.norm[rows],
        call.scores[rows],
        call.lse[rows],
        visible,
        call.scale,
        gate_flushes="d297" in context.defects,
    )


def _keep_signal(
    call: DenseBackwardCall,
    segment: Segment,
    rows: slice,
    limits: torch.Tensor,
    signal: torch.Tensor,
) -> None:
    """Write the signal where the release leaves it, up to the last block that is read."""
    if call.rules.score_gradient is ScoreGradient.TORCH:
        call.attention[rows] = signal
        return
    if call.rules.zeroes_row:
        call.scores[rows] = signal
        return
    reach = limits
    if call.rules.row_pair == 2:
        reach = _pair_limits(call, segment, rows)
    blocks = -(-reach // call.block) * call.block
    if call.rules.row_pair == 2 and segment.k_count > 0:
        blocks = blocks.clamp(min=call.block)
    written = torch.arange(signal.shape[1]) < blocks.unsqueeze(1)
    call.scores[rows] = torch.where(written, signal, call.scores[rows])


def _pair_limits(call: DenseBackwardCall, segment: Segment, rows: slice) -> torch.Tensor:
    """Limit of the longer row of each row's pair; pairs are counted from the last row."""
    local = torch.arange(rows.start, rows.stop) - segment.q_start
    partner = local + (segment.q_count - 1 - local) % 2
    reach = torch.div(segment.offset + partner + 1, call.layout.ratio, rounding_mode="floor")
    return reach.clamp(0, max(segment.k_count, 0))
