"""``indexer_forward_top_k_wrapper``: scores and selection in one, without the score matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.kernels import ranking
from harness.kernels.addresses import Bounds, Operand
from harness.kernels.context import KernelContext
from harness.kernels.fused_buffers import (
    FusedOutputs,
    check_candidates,
    check_outputs,
    deliver,
    fresh_outputs,
    launch_window,
    wanted,
)
from harness.kernels.indexer_forward import log_sum_exp
from harness.kernels.limits import Segment, row_limits
from harness.kernels.problem import Refusals, ScoringProblem, build_problem, require
from harness.kernels.scores import fill_scores
from harness.kernels.selection import HIDDEN_KEY, TieRule, select_columns, shuffle_slots
from harness.kernels.topk_plan import MAX_TOP_K
from harness.kernels.tuple_dict import TupleDict

NAME = "indexer_forward_top_k_wrapper"
_CHUNK_ELEMENTS = 1 << 23
"""Scores held at a time."""
_GRID_Y = 65535
_REFUSALS = Refusals(dtype=TypeError, shape=ValueError, prefix=ValueError, one_prefix=ValueError)


def indexer_forward_top_k(context: KernelContext, arguments: Mapping[str, Any]) -> TupleDict:
    """Model one call.

    Windows of rows (``microbatch_rows``) change memory, not results, and are only validated.

    Returns:
        ``indices`` int32, ``logits`` fp32, ``softmax`` fp32 unless declined, ``lse`` fp32 when
        asked for: (B, Sq, K) or (T, K), lse without the last axis. Ids are global (b * Sk + local,
        or cu_seqlens_k[b] + local) unless ``topk_indices_global`` is False; empty slots hold -1,
        -inf and 0.

    Raises:
        NotImplementedError: Architecture, or a window together with lse or offsets.
        AddressFault: Prefix sums, offsets or a trusted buffer lead outside an allocation.
        ValueError, TypeError: As the release refuses arguments.
    """
    heads = context.release.fused.get(context.arch)
    if heads is None:
        raise NotImplementedError(f"{NAME} does not run on {context.arch}; it needs sm100")
    top_k = int(arguments["top_k"])
    require(0 < top_k <= MAX_TOP_K, ValueError, f"top_k is {top_k}; expected 1 to {MAX_TOP_K}")
    for name, only in (("kv_stage", 4), ("q_stage", 2)):
        require(
            arguments[name] == only, ValueError, f"{name} is {arguments[name]}; expected {only}"
        )
    problem = build_problem(
        context,
        arguments,
        heads=heads,
        size_rule=context.release.fused_size_rule,
        refusals=_REFUSALS,
        derive_maxima=True,
    )
    check_outputs(context, arguments, problem.leading, top_k)
    want = wanted(arguments)
    bounds = context.bounds(NAME)
    window = launch_window(context, arguments, problem, want["lse"])
    check_candidates(context, arguments, problem, window, bounds)
    _check_grid(context, arguments, problem, bounds)
    outputs = fresh_outputs(problem, top_k, want)
    ties = TieRule.SMALLEST_COLUMN if arguments["deterministic"] else TieRule.ANY
    for segment in problem.segments:
        base = 0
        if arguments["topk_indices_global"]:
            base = segment.k_start
        _check_rows(problem, segment, bounds)
        _segment(context, problem, segment, outputs, ties, base)
    return TupleDict(**deliver(context, arguments, outputs, problem.leading))


def _check_grid(
    context: KernelContext, arguments: Mapping[str, Any], problem: ScoringProblem, bounds: Bounds
) -> None:
    """Judge the launch: batches of the grid, and rows that no THD segment owns.

    Each row searches the prefix sums for its segment, so a row behind the last sum runs off them.

    Raises:
        RuntimeError: More batches than the grid takes.
        AddressFault: A row behind the last prefix sum.
    """
    if not problem.thd:
        batch = problem.leading[0]
        require(batch <= _GRID_Y, RuntimeError, f"{batch} batches; the grid takes {_GRID_Y}")
        return
    prefix = context.hook.unwrap(arguments["cu_seqlens_q"])
    end = int(prefix[-1])
    if end < problem.rows:
        operand, entry = Operand.of("cu_seqlens_q", prefix), prefix.numel()
        bounds.touch(
            operand,
            row=end,
            index=entry,
            offset=operand.base + entry,
            row_span=operand.span,
        )


def _check_rows(problem: ScoringProblem, segment: Segment, bounds: Bounds) -> None:
    limits = row_limits(segment, problem.ratio)
    if limits.numel() == 0:
        return
    q, k = Operand.of("q", problem.q), Operand.of("k", problem.k)
    bounds.touch_rows(q, first_row=segment.q_start, count=limits.numel())
    bounds.touch_rows(k, first_row=segment.k_start, count=int(limits.max()))


def _segment(
    context: KernelContext,
    problem: ScoringProblem,
    segment: Segment,
    outputs: FusedOutputs,
    ties: TieRule,
    base: int,
) -> None:
    """Score and select the rows of one segment, a chunk at a time."""
    limits = row_limits(segment, problem.ratio)
    if limits.numel() == 0:
        return
    top_k = outputs.indices.shape[1]
    keys = problem.k[segment.k_start :]
    widest = max(int(limits.max()), top_k)
    for part in torch.arange(limits.numel()).split(max(1, _CHUNK_ELEMENTS // widest)):
        chunk = limits[part]
        rows = slice(segment.q_start + int(part[0]), segment.q_start + int(part[-1]) + 1)
        width = max(int(chunk.max()), top_k)
        scores = torch.full((chunk.numel(), width), float("-inf"))
        fill_scores(scores, problem.q[rows], keys, problem.w[rows], chunk, problem.sm_scale)
        picks = _pick(context, scores, chunk, top_k, ties)
        empty = picks < 0
        logits = scores.gather(1, picks.clamp(min=0)).masked_fill_(empty, float("-inf"))
        outputs.indices[rows] = torch.where(empty, -1, picks + base).to(torch.int32)
        outputs.logits[rows] = logits
        if outputs.softmax is not None:
            outputs.softmax[rows] = top_softmax(logits)
        if outputs.lse is not None:
            outputs.lse[rows] = log_sum_exp(scores)


def _pick(
    context: KernelContext,
    scores: torch.Tensor,
    limits: torch.Tensor,
    top_k: int,
    ties: TieRule,
) -> torch.Tensor:
    """Local columns per slot, -1 for none: int64 (rows, top_k)."""
    slots = torch.arange(top_k)
    picks = torch.where(slots < limits.unsqueeze(1), slots, -1)
    ranked = torch.nonzero(limits > top_k).flatten()
    if ranked.numel():
        keys = ranking.bit_order(scores[ranked]).clamp_(min=HIDDEN_KEY + 1)
        keys.masked_fill_(torch.arange(scores.shape[1]) >= limits[ranked].unsqueeze(1), HIDDEN_KEY)
        best = select_columns(keys, top_k, ties, context.generator)
        picks[ranked] = shuffle_slots(best, context.generator)
    return picks


def top_softmax(logits: torch.Tensor) -> torch.Tensor:
    """Softmax over the returned logits.

    The row maximum skips NaN, as the kernel's does: a row whose best logit is -inf is all 0, and a
    NaN or +inf beside finite logits makes the whole row NaN.
    """
    best = logits.masked_fill(logits.isnan(), float("-inf")).amax(dim=1, keepdim=True)
    weights = (logits - best).exp_()
    return (weights / weights.sum(dim=1, keepdim=True)).masked_fill_(best.isneginf(), 0.0)
