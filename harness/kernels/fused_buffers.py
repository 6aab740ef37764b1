"""Caller-owned buffers of the fused top-k: what is checked, what is trusted, what is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.kernels.addresses import Bounds, Operand
from harness.kernels.candidates import auto_window, batch_floats, slab_starts, window_floats
from harness.kernels.context import KernelContext
from harness.kernels.limits import row_limit
from harness.kernels.poison import poisoned
from harness.kernels.problem import ScoringProblem, require


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedOutputs:
    """Where results go; plain tensors, flat over the rows.

    Attributes:
        indices: int32 (T, K).
        logits: fp32 (T, K).
        softmax: fp32 (T, K), None when not asked for.
        lse: fp32 (T,), None when not asked for.
    """

    indices: torch.Tensor
    logits: torch.Tensor
    softmax: torch.Tensor | None
    lse: torch.Tensor | None


def wanted(arguments: Mapping[str, Any]) -> dict[str, bool]:
    """Which results the call returns, by result name."""
    asks = arguments["return_softmax"]
    return {
        "indices": True,
        "logits": True,
        "softmax": asks is not False or arguments["softmax_out"] is not None,
        "lse": bool(arguments["return_lse"]) or arguments["lse_out"] is not None,
    }


def fresh_outputs(problem: ScoringProblem, top_k: int, want: Mapping[str, bool]) -> FusedOutputs:
    """Poisoned outputs, to be filled row by row."""
    shape = (problem.rows, top_k)
    return FusedOutputs(
        indices=poisoned(shape, torch.int32),
        logits=poisoned(shape, torch.float32),
        softmax=poisoned(shape, torch.float32) if want["softmax"] else None,
        lse=poisoned(shape[:1], torch.float32) if want["lse"] else None,
    )


_CALLER_BUFFERS = (
    ("indices", "out_indices", torch.int32),
    ("logits", "out_logits", torch.float32),
    ("softmax", "softmax_out", torch.float32),
    ("lse", "lse_out", torch.float32),
)
"""(result, argument, dtype)."""


def check_outputs(
    context: KernelContext, arguments: Mapping[str, Any], leading: tuple[int, ...], top_k: int
) -> None:
    """Judge the metadata of the caller's output buffers.

    Raises:
        ValueError: Dtype, shape or layout.
    """
    for result, name, dtype in _CALLER_BUFFERS:
        given = arguments[name]
        if given is None:
            continue
        target = context.hook.unwrap(given)
        shape = leading if result == "lse" else (*leading, top_k)
        dense = target.is_contiguous() if result == "lse" else target.stride(-1) == 1
        require(
            tuple(target.shape) == shape and target.dtype == dtype and dense,
            ValueError,
            f"{name} is {target.dtype} {tuple(target.shape)}; expected {dtype} {shape} with a "
            "contiguous last axis",
        )


def deliver(
    context: KernelContext,
    arguments: Mapping[str, Any],
    outputs: FusedOutputs,
    leading: tuple[int, ...],
) -> dict[str, torch.Tensor]:
    """Hand results back by name, in the caller's buffers (identity kept) where given."""
    results: dict[str, torch.Tensor] = {}
    for result, name, _ in _CALLER_BUFFERS:
        made = getattr(outputs, result)
        if made is None:
            continue
        shaped = made.view(*leading, *made.shape[1:])
        given = arguments[name]
        if given is None:
            results[result] = context.hook.wrap_like(shaped, arguments["q"])
        else:
            context.hook.unwrap(given).copy_(shaped)
            results[result] = given
    return results


def launch_window(
    context: KernelContext, arguments: Mapping[str, Any], problem: ScoringProblem, want_lse: bool
) -> int:
    """Rows per window of the call; 0 for a single launch (always under THD).

    Raises:
        NotImplementedError: An explicit window with an lse or offsets.
        ValueError: A window or row count that is no multiple of ratio.
    """
    window = int(arguments["microbatch_rows"])
    if problem.thd:
        return 0
    has_offsets = arguments["q_causal_offsets"] is not None
    batch, rows = problem.leading
    if window < 0:
        return 0 if want_lse or has_offsets else auto_window(rows, batch, problem.ratio)
    require(
        window == 0 or not (want_lse or has_offsets),
        NotImplementedError,
        f"microbatch_rows {window} with an lse or q_causal_offsets; pass 0",
    )
    if not 0 < window < rows:
        return 0
    require(
        window % problem.ratio == 0 and rows % problem.ratio == 0,
        ValueError,
        f"microbatch_rows {window} and Sq {rows} must be multiples of ratio {problem.ratio}",
    )
    return window


def check_candidates(
    context: KernelContext,
    arguments: Mapping[str, Any],
    problem: ScoringProblem,
    window: int,
    bounds: Bounds,
) -> None:
    """Judge the candidate buffer: its metadata as the release does, its extent by address.

    The size is checked by the release only where it is known on the host (BSHD without offsets).

    Raises:
        ValueError: Metadata, or a size the release checks.
        AddressFault: A row's scores lie outside the buffer.
    """
    given = arguments["cand_buffer"]
    slabs = _slabs(context, arguments, problem)
    if given is None:
        return
    buffer = context.hook.unwrap(given)
    require(
        buffer.dtype == torch.float32 and buffer.is_contiguous(),
        ValueError,
        f"cand_buffer is {buffer.dtype} with strides {tuple(buffer.stride())}; expected "
        "contiguous fp32",
    )
    if not problem.thd and arguments["q_causal_offsets"] is None:
        batch, rows = problem.leading
        each = (
            window_floats(rows, problem.ratio, window)
            if window
            else batch_floats(rows, problem.ratio)
        )
        require(
            buffer.numel() >= batch * each,
            ValueError,
            f"cand_buffer holds {buffer.numel()} floats; expected at least {batch * each}",
        )
        return
    _check_slabs(Operand.of("cand_buffer", buffer.view(-1)), problem, slabs, bounds)


def _slabs(
    context: KernelContext, arguments: Mapping[str, Any], problem: ScoringProblem
) -> list[int]:
    """First float of each segment's slab: the caller's values, or computed."""
    given = arguments["cand_batch_offsets"]
    counts = [segment.q_count for segment in problem.segments]
    offsets = [segment.offset for segment in problem.segments]
    if given is None:
        return slab_starts(counts, problem.ratio, offsets)
    require(problem.thd, ValueError, "cand_batch_offsets belongs to THD; leave it out for BSHD")
    tensor = context.hook.unwrap(given)
    require(
        tensor.dtype == torch.int64
        and tuple(tensor.shape) == (len(counts) + 1,)
        and tensor.is_contiguous(),
        ValueError,
        f"cand_batch_offsets is {tensor.dtype} {tuple(tensor.shape)}; expected contiguous int64 "
        f"({len(counts) + 1},)",
    )
    return [int(value) for value in tensor.tolist()]


def _check_slabs(
    operand: Operand, problem: ScoringProblem, slabs: list[int], bounds: Bounds
) -> None:
    """Judge the first and the last stored score of every segment."""
    for segment in problem.segments:
        if segment.q_count <= 0:
            continue
        last = segment.q_count - 1
        start = operand.base + slabs[segment.index]
        row = start + batch_floats(last, problem.ratio, segment.offset)
        limit = row_limit(segment, last, problem.ratio)
        if limit > 0:
            bounds.touch_run(
                operand,
                row=segment.q_start + last,
                first_index=0,
                count=limit,
                first_offset=row,
                row_span=operand.span,
            )
        if start < operand.base:
            bounds.touch(operand, row=segment.q_start, index=0, offset=start, row_span=operand.span)
