"""Validated form of a top-k call: what is refused, repaired and planned before any row is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.kernels import ranking
from harness.kernels.addresses import Bounds, Operand
from harness.kernels.context import KernelContext, NotModelledError
from harness.kernels.problem import require
from harness.kernels.releases import TopKRules
from harness.kernels.selection import TieRule
from harness.kernels.topk_plan import MAX_TOP_K, VECTOR_BYTES, TopKPlan, topk_plan
from harness.kernels.topk_rows import RowReader, check_scratch

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True, slots=True)
class TopKCall:
    """One validated call.

    Attributes:
        values: (n_rows, num_cols), plain, contiguous, 32-byte aligned.
        lengths: int64 (n_rows,), per row, not clamped.
        plan: Geometry.
        ties: Rule at the cut.
        ascending: Picks come sorted by column.
        reader: Address-checked access to ``values``.
    """

    values: torch.Tensor
    lengths: torch.Tensor
    plan: TopKPlan
    ties: TieRule
    ascending: bool
    reader: RowReader


def prepare_call(
    context: KernelContext, arguments: Mapping[str, Any], bounds: Bounds, name: str
) -> TopKCall:
    """Validate a call, lay its tensors out and plan it.

    Raises:
        RuntimeError: The release does not run on the architecture.
        AddressFault: A row start that is formed in 32 bits overflows.
        ValueError, AssertionError: As the release refuses arguments.
    """
    rules = context.release.top_k.get(context.arch)
    _check_values(context, arguments)
    values = context.hook.unwrap(arguments["input_values"])
    seq_lens = context.hook.unwrap(arguments["seq_lens"])
    _check_tensors(values, seq_lens, arguments, rules)
    if rules is None:
        raise RuntimeError(
            f"{name} of {context.release.version} does not run on {context.arch}; "
            f"it needs one of {sorted(context.release.top_k)}"
        )
    call = _prepare(context, arguments, _laid_out(values, rules), seq_lens, bounds)
    _check_offsets(call, bounds)
    return call


def _check_values(context: KernelContext, arguments: Mapping[str, Any]) -> None:
    top_k, next_n = int(arguments["top_k"]), int(arguments["next_n"])
    require(0 < top_k <= MAX_TOP_K, ValueError, f"top_k is {top_k}; expected 1 to {MAX_TOP_K}")
    require(
        "fixed_width" not in context.defects or top_k == MAX_TOP_K,
        AssertionError,
        f"top_k == {MAX_TOP_K}",
    )
    ties = arguments.get("tie_break", 0)
    require(ties in (0, 1, 2), ValueError, f"tie_break is {ties}; expected 0, 1 or 2")
    require(next_n > 0, ValueError, f"next_n is {next_n}; expected a positive number")
    if int(arguments["num_copy_bits"]) != VECTOR_BYTES * 8:
        raise NotModelledError("only num_copy_bits=256 is modelled")


def _check_tensors(
    values: torch.Tensor,
    seq_lens: torch.Tensor,
    arguments: Mapping[str, Any],
    rules: TopKRules | None,
) -> None:
    require(
        values.dtype in _DTYPES,
        ValueError,
        f"input_values is {values.dtype}; expected one of {_DTYPES}",
    )
    require(
        seq_lens.dtype == torch.int32,
        ValueError,
        f"seq_lens is {seq_lens.dtype}; expected int32",
    )
    require(
        values.ndim == 2 and seq_lens.ndim == 1,
        ValueError,
        f"input_values has {values.ndim} axes and seq_lens {seq_lens.ndim}; expected 2 and 1",
    )
    require(
        values.device == seq_lens.device,
        ValueError,
        f"seq_lens is on {seq_lens.device}; expected {values.device}",
    )
    rows, next_n = values.shape[0], int(arguments["next_n"])
    require(
        rows == seq_lens.shape[0] * next_n,
        ValueError,
        f"{rows} rows; expected {seq_lens.shape[0]} seq_lens * next_n {next_n}",
    )
    strict = rules is not None and rules.checks_extents
    # Older releases accept empty shapes and fail at the launch boundary, with the same type.
    where = "the check" if strict else "the launch"
    require(values.numel() > 0, ValueError, f"{where} refuses shape {tuple(values.shape)}")


def _laid_out(values: torch.Tensor, rules: TopKRules) -> torch.Tensor:
    """Return values contiguous and aligned: copied by newer releases, refused by older ones."""
    aligned = values.storage_offset() * values.element_size() % VECTOR_BYTES == 0
    if values.is_contiguous() and aligned:
        return values
    require(
        rules.repairs_layout,
        ValueError,
        f"input_values has strides {tuple(values.stride())} and storage offset "
        f"{values.storage_offset()}; expected a contiguous tensor at a multiple of "
        f"{VECTOR_BYTES} bytes",
    )
    return values.clone(memory_format=torch.contiguous_format)


def _prepare(
    context: KernelContext,
    arguments: Mapping[str, Any],
    values: torch.Tensor,
    seq_lens: torch.Tensor,
    bounds: Bounds,
) -> TopKCall:
    rules = context.release.top_k[context.arch]
    require(
        seq_lens.is_contiguous() or rules.repairs_layout,
        ValueError,
        f"seq_lens has stride {seq_lens.stride()}; expected contiguous",
    )
    next_n = int(arguments["next_n"])
    plan = topk_plan(
        n_rows=values.shape[0],
        num_cols=values.shape[1],
        top_k=int(arguments["top_k"]),
        element_bytes=values.element_size(),
        next_n=next_n,
        chunked="d311" not in context.defects,
    )
    check_plan(plan, context.defects)
    step = torch.arange(next_n) - (next_n - 1)
    lengths = (seq_lens.to(torch.int64).unsqueeze(1) + step).flatten()
    if "long_lengths" not in context.defects:
        lengths = lengths.clamp(max=plan.num_cols)
    lengths = _planted_lengths(context.defects, lengths, plan.num_cols, plan.bucket)
    ascending = bool(arguments.get("deterministic", False))
    ties = TieRule(arguments.get("tie_break", 0))
    if ascending and ties is TieRule.ANY:
        ties = TieRule.SMALLEST_COLUMN
    return TopKCall(
        values=values,
        lengths=lengths,
        plan=plan,
        ties=ties,
        ascending=ascending,
        reader=RowReader.of(values, bounds),
    )


def _planted_lengths(
    defects: frozenset[str], lengths: torch.Tensor, num_cols: int, bucket: int
) -> torch.Tensor:
    """Columns that each row ranks under ``over_limit`` and ``rounded_width``, int64 (rows,).

    Args:
        defects: Names switched on.
        lengths: Right ones.
        num_cols: Columns of the input.
        bucket: Columns that the kernel was compiled for, at least ``num_cols``.
    """
    if "over_limit" in defects:
        lengths = torch.where(lengths < num_cols, lengths + 1, lengths)
    if "rounded_width" in defects:
        lengths = torch.where(lengths >= num_cols, bucket, lengths)
    return lengths


def check_plan(plan: TopKPlan, defects: frozenset[str]) -> None:
    """Refuse what cannot be compiled or launched.

    Raises:
        AssertionError: Odd top_k above the thread count, with ``d406``.
        ValueError: One aligned step of rows exceeds the scratch index, without ``d311`` and
            ``d311_residue``.
    """
    require(
        "d406" not in defects or not plan.refuses_odd_top_k,
        AssertionError,
        f"top_k {plan.top_k} is odd and above {plan.threads} threads; two-wide stores do not "
        "tile it",
    )
    require(
        not plan.needs_wide_offsets or bool({"d311", "d311_residue"} & defects),
        ValueError,
        f"one aligned step of rows of {plan.num_cols} columns exceeds 2^31 scratch words; use "
        "fewer columns or a smaller next_n",
    )


def _check_offsets(call: TopKCall, bounds: Bounds) -> None:
    """Judge the row starts that are formed in 32 bits, for rows that are reached."""
    plan = call.plan
    for name, width in (("input_values", plan.num_cols), ("indices", plan.top_k)):
        late = plan.overflow_rows(width)
        if late:
            operand = Operand.contiguous(name, (plan.n_rows, width))
            bounds.touch_int32(operand, row=late[0], index=0, offset=late[0] * width)
    for row in plan.overflow_rows(plan.row_words):
        spilled = spilled_candidates(plan, call.values[row], int(call.lengths[row]))
        check_scratch(bounds, plan, row=row, half=0, first=0, count=spilled)


def spilled_candidates(plan: TopKPlan, scores: torch.Tensor, length: int) -> int:
    """Candidates of the cut bucket that do not fit shared memory; 0 where nothing spills."""
    if length <= plan.top_k or not plan.spills:
        return 0
    counts = torch.bincount(ranking.coarse_bucket(scores[:length]), minlength=256)
    totals = counts.cumsum(0)
    cut = int(torch.nonzero(totals > plan.top_k)[0])
    if int(totals[cut] - counts[cut]) == plan.top_k:
        return 0
    return max(int(counts[cut]) - plan.capacity, 0)
