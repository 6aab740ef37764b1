"""Rows, columns and segments of the dense training wrappers, BSHD and THD."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.kernels.context import KernelContext
from harness.kernels.limits import Segment, row_limits
from harness.kernels.problem import build_segments, causal_offsets, require


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseLayout:
    """Geometry of one call.

    Attributes:
        leading: Shape of the scores before their last axis: (B, Sq) or (T,).
        width: Score columns: Sk, or max_seqlen_k under THD.
        segments: In order.
        thd: Whether prefix sums define the segments.
        max_rows: ``max_seqlen_q`` under THD, else Sq.
        ratio: Uncompressed tokens per key.
    """

    leading: tuple[int, ...]
    width: int
    segments: tuple[Segment, ...]
    thd: bool
    max_rows: int
    ratio: int

    @property
    def rows(self) -> int:
        """Flat query rows."""
        total = 1
        for extent in self.leading:
            total *= extent
        return total


def is_thd(arguments: Mapping[str, Any]) -> bool:
    """Whether the call is packed.

    Raises:
        ValueError: Only one of the two prefix sums is given.
    """
    given = [arguments[name] is not None for name in ("cu_seqlens_q", "cu_seqlens_k")]
    require(given[0] == given[1], ValueError, "THD needs both cu_seqlens_q and cu_seqlens_k")
    return given[0]


def bshd_layout(
    context: KernelContext,
    arguments: Mapping[str, Any],
    *,
    batch: int,
    rows: int,
    keys: int,
    device: torch.device,
) -> DenseLayout:
    """Lay a BSHD call out.

    Raises:
        ValueError: Offsets of the wrong dtype, shape or device.
    """
    ratio = int(arguments["ratio"])
    offsets = causal_offsets(context, arguments, batch, device)
    spans = [(b * rows, rows, b * keys, keys) for b in range(batch)]
    return DenseLayout(
        leading=(batch, rows),
        width=keys,
        segments=build_segments(context, spans, ratio, offsets),
        thd=False,
        max_rows=rows,
        ratio=ratio,
    )


def thd_layout(
    context: KernelContext,
    arguments: Mapping[str, Any],
    *,
    rows: int,
    device: torch.device,
    prefix_error: type[Exception] | None,
) -> DenseLayout:
    """Lay a THD call out; missing maxima come from the prefix sums.

    Args:
        context: Release and architecture.
        arguments: Bound arguments.
        rows: Packed query rows.
        device: Of the queries.
        prefix_error: How a prefix sum that is not contiguous int32 is refused; None casts it.

    Raises:
        ValueError: Axes or lengths of the prefix sums, or offsets.
        Exception: ``prefix_error``.
    """
    cu_q, cu_k = (_prefix(context, arguments, f"cu_seqlens_{side}", prefix_error) for side in "qk")
    require(
        len(cu_q) == len(cu_k),
        ValueError,
        f"prefix sums have {len(cu_q)} and {len(cu_k)} entries; expected the same",
    )
    ratio = int(arguments["ratio"])
    offsets = causal_offsets(context, arguments, len(cu_q) - 1, device)
    spans = [
        (cu_q[b], cu_q[b + 1] - cu_q[b], cu_k[b], cu_k[b + 1] - cu_k[b])
        for b in range(len(cu_q) - 1)
    ]
    return DenseLayout(
        leading=(rows,),
        width=_maximum(arguments["max_seqlen_k"], cu_k),
        segments=build_segments(context, spans, ratio, offsets),
        thd=True,
        max_rows=_maximum(arguments["max_seqlen_q"], cu_q),
        ratio=ratio,
    )


def _prefix(
    context: KernelContext,
    arguments: Mapping[str, Any],
    name: str,
    error: type[Exception] | None,
) -> list[int]:
    tensor = context.hook.unwrap(arguments[name])
    require(tensor.ndim == 1, ValueError, f"{name} has {tensor.ndim} axes; expected 1")
    require(
        error is None or (tensor.dtype == torch.int32 and tensor.is_contiguous()),
        error or ValueError,
        f"{name} is {tensor.dtype} with strides {tuple(tensor.stride())}; expected contiguous "
        "int32",
    )
    return [int(value) for value in tensor.tolist()]


def _maximum(given: Any, prefix: list[int]) -> int:
    if given is not None:
        return int(given)
    return max((b - a for a, b in itertools.pairwise(prefix)), default=0)


def computed_limits(
    context: KernelContext, layout: DenseLayout, segment: Segment, *, sized_by_maximum: bool
) -> torch.Tensor:
    """Limits of the segment's rows that the launch reaches, int64 (rows,).

    Args:
        context: Defects.
        layout: Geometry.
        segment: One of its segments.
        sized_by_maximum: The grid has ``max_rows`` rows per segment.
    """
    rows = max(segment.q_count, 0)
    if layout.thd and sized_by_maximum and "short_max_q" in context.defects:
        rows = min(rows, max(layout.max_rows, 0))
    # Columns behind the scores are guarded; only their sums would miss them.
    return row_limits(segment, layout.ratio, rows=rows).clamp(max=layout.width)


def segment_keys(keys: torch.Tensor, segment: Segment, count: int) -> torch.Tensor:
    """First ``count`` keys of a segment; rows behind the tensor arrive as zeros (clipped copy)."""
    found = keys[segment.k_start : segment.k_start + count]
    missing = count - found.shape[0]
    return torch.nn.functional.pad(found, (0, 0, 0, missing)) if missing > 0 else found
