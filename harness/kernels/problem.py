"""The scoring problem behind BSHD and THD calls: flat rows, flat keys, and segments over them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.kernels.context import KernelContext, NotModelledError
from harness.kernels.limits import Segment, alignment_offset
from harness.kernels.releases import SizeRule

HEAD_DIM = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusals:
    """Exception types a wrapper uses for what it refuses.

    Attributes:
        dtype: Wrong dtype of q, k or w.
        shape: Wrong rank or shape, head count, key heads, head dimension.
        prefix: Wrong dtype, rank or contiguity of a prefix sum.
        one_prefix: Only one of the two prefix sums given.
    """

    dtype: type[Exception]
    shape: type[Exception]
    prefix: type[Exception]
    one_prefix: type[Exception]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoringProblem:
    """Validated inputs of forward or fused top-k.

    Attributes:
        q: (T, H, D) bf16, contiguous, plain.
        k: (Tk, D) bf16.
        w: (T, H) bf16 or fp32.
        ratio: Uncompressed tokens per key.
        sm_scale: Factor on the score.
        leading: Shape of the outputs before their last axis: (B, Sq) or (T,).
        width: Score columns: Sk, or max_seqlen_k under THD.
        segments: In order.
        thd: Whether prefix sums define the segments.
        max_rows: ``max_seqlen_q`` under THD, else Sq.
    """

    q: torch.Tensor
    k: torch.Tensor
    w: torch.Tensor
    ratio: int
    sm_scale: float
    leading: tuple[int, ...]
    width: int
    segments: tuple[Segment, ...]
    thd: bool
    max_rows: int

    @property
    def rows(self) -> int:
        """Flat query rows."""
        return self.q.shape[0]

    @property
    def heads(self) -> int:
        """Query heads."""
        return self.q.shape[1]


def require(condition: bool, error: type[Exception], message: str) -> None:
    """Raise ``error`` with ``message`` unless ``condition``."""
    if not condition:
        raise error(message)


def build_problem(
    context: KernelContext,
    arguments: Mapping[str, Any],
    *,
    heads: tuple[int, ...],
    size_rule: SizeRule,
    refusals: Refusals,
    derive_maxima: bool = False,
) -> ScoringProblem:
    """Validate the arguments that forward and fused top-k share.

    Args:
        context: Release and architecture.
        arguments: Bound arguments of the wrapper.
        heads: Head counts served.
        size_rule: Rows against keys.
        refusals: Exception types.
        derive_maxima: Take missing ``max_seqlen_*`` from the prefix sums (fused top-k).

    Raises:
        NotModelledError: A block-scaled or fp8 precision.
        Exception: One of ``refusals``, ``ValueError`` or ``NotImplementedError``, as the release.
    """
    require_bf16_path(arguments)
    ratio = int(arguments["ratio"])
    require(ratio >= 1, ValueError, f"ratio is {ratio}; expected at least 1")
    unwrap = context.hook.unwrap
    q, k, w = (unwrap(arguments[name]) for name in ("q", "k", "w"))
    _check_dtypes(context, q, k, w, refusals)
    one_given = (arguments["cu_seqlens_q"] is None) != (arguments["cu_seqlens_k"] is None)
    require(
        not one_given,
        refusals.one_prefix,
        "THD needs both cu_seqlens_q and cu_seqlens_k; give both or neither",
    )
    thd = arguments["cu_seqlens_q"] is not None
    _check_shapes(q, k, w, thd=thd, heads=heads, refusals=refusals)
    per_key = arguments["qhead_per_kv_head"]
    require(
        per_key in (None, q.shape[-2]),
        refusals.shape,
        f"qhead_per_kv_head is {per_key}; expected {q.shape[-2]} heads / 1 key head",
    )
    if thd:
        return _thd(context, arguments, (q, k, w), size_rule, refusals, derive_maxima)
    return _bshd(context, arguments, (q, k, w), size_rule)


def require_bf16_path(arguments: Mapping[str, Any]) -> None:
    """Refuse the precisions that are not modelled, and scales without them.

    Raises:
        NotModelledError: Precision other than bf16.
        ValueError: A scale tensor with bf16.
    """
    precision = arguments.get("precision", "bf16")
    if str(precision).lower() != "bf16":
        raise NotModelledError(f"precision {precision!r} is not modelled; use 'bf16'")
    names = ("q_scale", "k_scale", "cu_seqlens_q_scale_padded", "cu_seqlens_k_scale_padded")
    given = [name for name in names if arguments.get(name) is not None]
    require(not given, ValueError, f"{given} belong to a block-scaled precision, not to bf16")


def _check_dtypes(
    context: KernelContext, q: torch.Tensor, k: torch.Tensor, w: torch.Tensor, refusals: Refusals
) -> None:
    for name, tensor in (("q", q), ("k", k)):
        require(
            tensor.dtype == torch.bfloat16,
            refusals.dtype,
            f"{name} is {tensor.dtype}; expected bfloat16",
        )
    allowed = [torch.bfloat16] + ([torch.float32] if context.release.fp32_weights else [])
    require(w.dtype in allowed, refusals.dtype, f"w is {w.dtype}; expected one of {allowed}")
    require(
        w.dtype == torch.bfloat16 or w.stride(-1) == 1,
        NotImplementedError,
        f"fp32 w has strides {tuple(w.stride())}; expected a unit last stride",
    )


def _check_shapes(
    q: torch.Tensor,
    k: torch.Tensor,
    w: torch.Tensor,
    *,
    thd: bool,
    heads: tuple[int, ...],
    refusals: Refusals,
) -> None:
    rank, layout = (3, "(T, H, D)") if thd else (4, "(B, S, H, D)")
    for name, tensor, expected in (("q", q, rank), ("k", k, rank), ("w", w, rank - 1)):
        require(
            tensor.ndim == expected,
            refusals.shape,
            f"{name} has {tensor.ndim} axes; expected {expected} with q laid out as {layout}",
        )
    require(
        q.shape[-1] == k.shape[-1] == HEAD_DIM,
        refusals.shape,
        f"head dimensions of q and k are {q.shape[-1]} and {k.shape[-1]}; expected {HEAD_DIM}",
    )
    require(k.shape[-2] == 1, refusals.shape, f"k has {k.shape[-2]} heads; expected 1")
    require(
        tuple(w.shape) == tuple(q.shape[:-1]),
        refusals.shape,
        f"w has shape {tuple(w.shape)}; expected {tuple(q.shape[:-1])}",
    )
    require(
        thd or q.shape[0] == k.shape[0],
        refusals.shape,
        f"q has {q.shape[0]} batches and k has {k.shape[0]}; expected the same",
    )
    require(
        q.shape[-2] in heads,
        refusals.shape,
        f"{q.shape[-2]} query heads per key head; this release serves {heads}",
    )


def check_size_rule(rule: SizeRule, q_rows: int, keys: int, ratio: int) -> None:
    """Refuse more query rows than the keys cover.

    Raises:
        ValueError: The rule of the release is broken.
    """
    if rule is SizeRule.NONE:
        return
    most = keys * ratio + (ratio - 1 if rule is SizeRule.PARTIAL_BLOCK else 0)
    require(
        q_rows <= most,
        ValueError,
        f"{q_rows} query rows over {keys} keys at ratio {ratio}; expected at most {most}",
    )


def causal_offsets(
    context: KernelContext, arguments: Mapping[str, Any], batch: int, device: torch.device
) -> list[int] | None:
    """Read ``q_causal_offsets``; None when the release has none or the caller gave none.

    Values are not checked: a negative one shrinks the limit.

    Raises:
        ValueError: Dtype, shape or device.
    """
    given = arguments.get("q_causal_offsets")
    if given is None:
        return None
    given = context.hook.unwrap(given)
    require(
        given.dtype == torch.int32,
        ValueError,
        f"q_causal_offsets is {given.dtype}; expected int32",
    )
    require(
        tuple(given.shape) == (batch,),
        ValueError,
        f"q_causal_offsets has shape {tuple(given.shape)}; expected ({batch},), one per segment",
    )
    require(
        given.device == device,
        ValueError,
        f"q_causal_offsets is on {given.device}; expected q's device {device}",
    )
    return [int(value) for value in given.tolist()]


def build_segments(
    context: KernelContext,
    spans: list[tuple[int, int, int, int]],
    ratio: int,
    offsets: list[int] | None,
) -> tuple[Segment, ...]:
    """Build segments from (q_start, q_count, k_start, k_count)."""
    return tuple(
        Segment(
            index=index,
            q_start=q_start,
            q_count=q_count,
            k_start=k_start,
            k_count=k_count,
            offset=alignment_offset(
                context.release.mask_alignment,
                q_count=q_count,
                k_count=k_count,
                ratio=ratio,
                given=None if offsets is None else offsets[index],
            ),
        )
        for index, (q_start, q_count, k_start, k_count) in enumerate(spans)
    )


def _bshd(
    context: KernelContext,
    arguments: Mapping[str, Any],
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    size_rule: SizeRule,
) -> ScoringProblem:
    q, k, w = tensors
    batch, rows, heads, depth = q.shape
    keys, ratio = k.shape[1], int(arguments["ratio"])
    check_size_rule(size_rule, rows, keys, ratio)
    offsets = causal_offsets(context, arguments, batch, q.device)
    spans = [(b * rows, rows, b * keys, keys) for b in range(batch)]
    return ScoringProblem(
        q=q.reshape(batch * rows, heads, depth),
        k=k.reshape(batch * keys, depth),
        w=w.reshape(batch * rows, heads),
        ratio=ratio,
        sm_scale=float(arguments["sm_scale"]),
        leading=(batch, rows),
        width=keys,
        segments=build_segments(context, spans, ratio, offsets),
        thd=False,
        max_rows=rows,
    )


def _thd(
    context: KernelContext,
    arguments: Mapping[str, Any],
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    size_rule: SizeRule,
    refusals: Refusals,
    derive_maxima: bool,
) -> ScoringProblem:
    q, k, w = tensors
    cu_q, cu_k = (_prefix(context, arguments, name, refusals) for name in ("q", "k"))
    require(
        len(cu_q) == len(cu_k) and len(cu_q) >= 2,
        refusals.prefix,
        f"prefix sums have {len(cu_q)} and {len(cu_k)} entries; expected the same, at least 2",
    )
    maxima = [
        _maximum(arguments[name], cu, name, derive_maxima)
        for name, cu in (("max_seqlen_q", cu_q), ("max_seqlen_k", cu_k))
    ]
    ratio = int(arguments["ratio"])
    if derive_maxima:
        check_size_rule(size_rule, maxima[0], maxima[1], ratio)
    offsets = causal_offsets(context, arguments, len(cu_q) - 1, q.device)
    spans = [
        (cu_q[b], cu_q[b + 1] - cu_q[b], cu_k[b], cu_k[b + 1] - cu_k[b])
        for b in range(len(cu_q) - 1)
    ]
    return ScoringProblem(
        q=q.contiguous(),
        k=k[:, 0].contiguous(),
        w=w.contiguous(),
        ratio=ratio,
        sm_scale=float(arguments["sm_scale"]),
        leading=(q.shape[0],),
        width=maxima[1],
        segments=build_segments(context, spans, ratio, offsets),
        thd=True,
        max_rows=maxima[0],
    )


def _prefix(
    context: KernelContext, arguments: Mapping[str, Any], side: str, refusals: Refusals
) -> list[int]:
    name = f"cu_seqlens_{side}"
    tensor = context.hook.unwrap(arguments[name])
    good = tensor.dtype == torch.int32 and tensor.ndim == 1 and tensor.stride(0) == 1
    require(
        good,
        refusals.prefix,
        f"{name} is {tensor.dtype} {tuple(tensor.shape)} with strides {tuple(tensor.stride())}; "
        "expected contiguous 1-D int32",
    )
    return [int(value) for value in tensor.tolist()]


def _maximum(given: Any, prefix: list[int], name: str, derive: bool) -> int:
    if given is None and derive:
        return max(later - earlier for earlier, later in itertools.pairwise(prefix))
    require(given is not None, ValueError, f"THD needs {name}; pass the longest segment's length")
    return int(given)
