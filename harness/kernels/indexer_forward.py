"""``indexer_forward_wrapper``: dense indexer scores with a ratio causal mask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.kernels.addresses import Bounds, Operand
from harness.kernels.context import KernelContext
from harness.kernels.limits import Segment, leaked_limits, row_limits
from harness.kernels.problem import Refusals, ScoringProblem, build_problem, require
from harness.kernels.releases import ForwardRules
from harness.kernels.scores import fill_scores
from harness.kernels.tuple_dict import TupleDict

NAME = "indexer_forward_wrapper"
_ROW_FLOATS = 4
"""SM100 binds rows of a multiple of four floats (16 bytes)."""
_LEAKING_HEADS = 32
_LSE_FLOOR = -1.0e30
_TUNING = {"m_block_size": 128, "n_block_size": 128, "q_stage": 2, "kv_stage": 4}


def indexer_forward(context: KernelContext, arguments: Mapping[str, Any]) -> TupleDict:
    """Model one call.

    Returns:
        ``scores``: fp32 (B, Sq, Sk), or (T, max_seqlen_k) with segment-local columns; -inf where
        a row may not look. ``lse`` as well where the architecture serves it and it was asked for.

    Raises:
        RuntimeError: The release does not run on the architecture.
        AddressFault: A prefix sum or a maximum leads outside an allocation.
        ValueError, AssertionError, NotImplementedError: As the release refuses arguments.
    """
    rules = context.release.forward.get(context.arch)
    if rules is None:
        raise RuntimeError(
            f"{NAME} of {context.release.version} does not run on {context.arch}; "
            f"it needs one of {sorted(context.release.forward)}"
        )
    _check_tuning(rules, arguments)
    wants_lse = bool(arguments.get("return_lse")) or arguments.get("lse_out") is not None
    require(
        not wants_lse or rules.gives_lse,
        NotImplementedError,
        f"{context.arch} forward gives no lse; leave out return_lse and lse_out",
    )
    problem = build_problem(
        context,
        arguments,
        heads=rules.heads,
        size_rule=rules.size_rule,
        refusals=_refusals(rules),
    )
    bounds = context.bounds(NAME)
    stride = _row_stride(context, problem.width)
    allocation = torch.full((problem.rows, stride), float("-inf"))
    _score(context, rules, problem, allocation, bounds)
    scores = _result_view(rules, allocation, problem)
    like = arguments["q"]
    out = arguments.get("out")
    result = TupleDict(scores=_deliver(context, scores, out, like, rules))
    if wants_lse:
        result = _with_lse(context, problem, result, scores, arguments)
    return result


def _check_tuning(rules: ForwardRules, arguments: Mapping[str, Any]) -> None:
    if rules.fixed_tuning:
        other = {name: arguments[name] for name in _TUNING if arguments[name] != _TUNING[name]}
        require(not other, ValueError, f"SM90 forward only takes the defaults; got {other}")
        return
    stage = arguments["q_stage"]
    require(stage == _TUNING["q_stage"], ValueError, f"q_stage is {stage}; expected 2")


def _refusals(rules: ForwardRules) -> Refusals:
    strict = rules.strict_error
    # The two architectures disagree only on how they refuse a lone prefix sum.
    one_prefix: type[Exception] = ValueError if strict is AssertionError else AssertionError
    return Refusals(
        dtype=AssertionError, shape=strict, prefix=AssertionError, one_prefix=one_prefix
    )


def _row_stride(context: KernelContext, width: int) -> int:
    return width if context.arch == "sm90" else -(-width // _ROW_FLOATS) * _ROW_FLOATS


def _result_view(
    rules: ForwardRules, allocation: torch.Tensor, problem: ScoringProblem
) -> torch.Tensor:
    """Cut the padded columns off, keeping the view where the release returns one."""
    shape = (*problem.leading, problem.width)
    if allocation.shape[1] == problem.width:
        return allocation.view(shape)
    view = allocation.view(*problem.leading, -1)[..., : problem.width]
    return view if rules.padded_view else view.contiguous()


def _score(
    context: KernelContext,
    rules: ForwardRules,
    problem: ScoringProblem,
    allocation: torch.Tensor,
    bounds: Bounds,
) -> None:
    if problem.width == 0 and rules.empty_without_launch:
        return
    operands = {
        "q": Operand.of("q", problem.q),
        "k": Operand.of("k", problem.k),
        "scores": Operand.of("scores", allocation),
    }
    late_rows: list[tuple[Segment, torch.Tensor]] = []
    for segment in problem.segments:
        limits = _stored_limits(context, rules, problem, segment)
        if limits.numel() == 0:
            continue
        _check_rows(bounds, operands, segment, limits)
        inside = limits.clamp(max=problem.width)
        first, count = segment.q_start, limits.numel()
        fill_scores(
            allocation[first : first + count],
            problem.q[first : first + count],
            _keys(problem, segment, int(limits.max())),
            problem.w[first : first + count],
            inside,
            0.0 if "zero_scores" in context.defects else problem.sm_scale,
        )
        if bool((limits > problem.width).any()):
            late_rows.append((segment, limits))
    for segment, limits in late_rows:
        _run_on(context, problem, segment, limits, allocation, bounds)


def _stored_limits(
    context: KernelContext, rules: ForwardRules, problem: ScoringProblem, segment: Segment
) -> torch.Tensor:
    """Columns stored per scored row, with the defects that change them; int64 (rows,)."""
    tokens = rules.tokens_per_tile[problem.heads]
    rows = max(segment.q_count, 0)
    if problem.thd and "short_max_q" in context.defects:
        rows = min(rows, -(-max(problem.max_rows, 0) // tokens) * tokens)
    limits = row_limits(segment, problem.ratio, rows=rows)
    if "mask_leak" in context.defects and problem.heads == _LEAKING_HEADS:
        limits = leaked_limits(limits, tokens)
    runs_on = not rules.column_guard and "short_max_k" in context.defects
    return limits if runs_on else limits.clamp(max=problem.width)


def _check_rows(
    bounds: Bounds, operands: Mapping[str, Operand], segment: Segment, limits: torch.Tensor
) -> None:
    """Judge the rows of q, scores and k that a segment's prefix sums lead to."""
    for name in ("q", "scores"):
        bounds.touch_rows(operands[name], first_row=segment.q_start, count=limits.numel())
    bounds.touch_rows(operands["k"], first_row=segment.k_start, count=int(limits.max()))


def _keys(problem: ScoringProblem, segment: Segment, count: int) -> torch.Tensor:
    """Keys of a segment; rows behind the tensor arrive as zeros, as the hardware copy clips."""
    keys = problem.k[segment.k_start : segment.k_start + count]
    missing = count - keys.shape[0]
    return torch.nn.functional.pad(keys, (0, 0, 0, missing)) if missing > 0 else keys


def _run_on(
    context: KernelContext,
    problem: ScoringProblem,
    segment: Segment,
    limits: torch.Tensor,
    allocation: torch.Tensor,
    bounds: Bounds,
) -> None:
    """Store the scores past ``max_seqlen_k`` where the unguarded kernel stores them.

    Cells that the next row owns and writes as well are a race: a seeded choice per row decides who
    comes last.
    """
    operand = Operand.of("scores", allocation)
    stride = allocation.shape[1]
    flat = allocation.view(-1)
    rows = torch.nonzero(limits > problem.width).flatten().tolist()
    lasts = torch.randint(0, 2, (len(rows),), generator=context.generator).tolist()
    for row, is_last in zip(rows, lasts, strict=True):
        limit, flat_row = int(limits[row]), segment.q_start + row
        span = (flat_row * stride, flat_row * stride + problem.width)
        bounds.touch_run(
            operand,
            row=flat_row,
            first_index=problem.width,
            count=limit - problem.width,
            first_offset=span[1],
            row_span=span,
        )
        line = torch.full((1, limit), float("-inf"))
        fill_scores(
            line,
            problem.q[flat_row : flat_row + 1],
            _keys(problem, segment, limit),
            problem.w[flat_row : flat_row + 1],
            limits[row : row + 1],
            problem.sm_scale,
        )
        target = flat[span[1] : span[0] + limit]
        extra = line[0, problem.width :]
        target.copy_(extra if is_last else torch.where(target.isneginf(), extra, target))


def _deliver(
    context: KernelContext,
    scores: torch.Tensor,
    out: torch.Tensor | None,
    like: torch.Tensor,
    rules: ForwardRules,
) -> torch.Tensor:
    """Hand back the result, in the caller's ``out`` (identity kept) where there is one."""
    if out is None:
        return context.hook.wrap_like(scores, like)
    target = context.hook.unwrap(out)
    require(
        target.dtype == torch.float32 and target.shape == scores.shape,
        rules.strict_error,
        f"out is {target.dtype} {tuple(target.shape)}; expected fp32 {tuple(scores.shape)}",
    )
    require(
        rules.strict_error is not AssertionError or target.is_contiguous(),
        AssertionError,
        f"out has strides {tuple(target.stride())}; SM90 writes a contiguous tensor only",
    )
    target.copy_(scores)
    return out


def _with_lse(
    context: KernelContext,
    problem: ScoringProblem,
    result: TupleDict,
    scores: torch.Tensor,
    arguments: Mapping[str, Any],
) -> TupleDict:
    """Add the lse of every row, over its visible cells alone (a leaked cell does not count)."""
    visible = torch.zeros(problem.rows, dtype=torch.int64)
    for segment in problem.segments:
        limits = row_limits(segment, problem.ratio)
        visible[segment.q_start : segment.q_start + limits.numel()] = limits
    hidden = torch.arange(problem.width) >= visible.view(*problem.leading, 1)
    lse = log_sum_exp(scores.masked_fill(hidden, float("-inf")))
    lse_out = arguments.get("lse_out")
    if lse_out is not None:
        target = context.hook.unwrap(lse_out)
        good = target.shape == lse.shape and target.dtype == torch.float32
        require(
            good and target.is_contiguous(),
            AssertionError,
            f"lse_out is {target.dtype} {tuple(target.shape)}; expected contiguous fp32 "
            f"{tuple(lse.shape)}",
        )
        target.copy_(lse)
    if not arguments.get("return_lse"):
        return result
    given = lse_out if lse_out is not None else context.hook.wrap_like(lse, arguments["q"])
    return TupleDict(scores=result["scores"], lse=given)


def log_sum_exp(scores: torch.Tensor) -> torch.Tensor:
    """Logsumexp over the last axis as the kernels form it: -inf when the maximum is <= -1e30."""
    if scores.shape[-1] == 0:
        return torch.full(scores.shape[:-1], float("-inf"))
    largest = scores.amax(dim=-1)
    return torch.where(largest <= _LSE_FLOOR, float("-inf"), torch.logsumexp(scores, dim=-1))
