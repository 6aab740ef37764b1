"""Candidate buffer of the fused top-k: only visible scores, row after row, slab after slab.

The size formula counts limits that ignore the number of keys, so a limit that the keys clamp
leaves a gap that is neither written nor read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.kernels.context import KernelContext
from harness.kernels.problem import causal_offsets, check_size_rule, require, require_bf16_path

_AUTO_ROWS = 32768
"""Rows from which a BSHD call is cut into windows."""


def visible_total(tokens: int, ratio: int) -> int:
    """G(n): keys seen by tokens 0..n together, sum of m // ratio for m <= n."""
    whole, part = divmod(tokens, ratio)
    return ratio * whole * (whole - 1) // 2 + whole * (part + 1)


def batch_floats(q_rows: int, ratio: int, offset: int = 0) -> int:
    """Floats that a batch entry of ``q_rows`` rows from token ``offset`` on needs."""
    return visible_total(offset + q_rows, ratio) - visible_total(offset, ratio)


def auto_window(q_rows: int, batch: int, ratio: int) -> int:
    """Rows per window of the automatic policy; 0 for a single launch."""
    if q_rows < _AUTO_ROWS or q_rows % ratio != 0:
        return 0
    rows = 2048 if batch >= 8 else 4096 if batch >= 4 else 8192
    return rows // ratio * ratio


def window_floats(q_rows: int, ratio: int, window: int) -> int:
    """Floats per batch entry of the largest window."""
    starts = range(0, q_rows, window)
    return max(batch_floats(min(window, q_rows - start), ratio, start) for start in starts)


def candidate_size(context: KernelContext, arguments: Mapping[str, Any]) -> int:
    """Model ``compress_topk_cand_buffer_size``: floats of a BSHD call's candidate buffer.

    Raises:
        ValueError: Size rule, offsets' dtype or shape, or a negative offset.
        NotImplementedError: An explicit window together with an lse.
    """
    batch, q_rows, ratio = (int(arguments[name]) for name in ("bs", "seqlen_q", "ratio"))
    require_bf16_path(arguments)
    check_size_rule(context.release.fused_size_rule, q_rows, int(arguments["seqlen_k"]), ratio)
    offsets = causal_offsets(context, arguments, batch, torch.device("cpu"))
    if offsets is not None:
        return sum(batch_floats(q_rows, ratio, offset) for offset in offsets)
    window = int(arguments["microbatch_rows"])
    if arguments["return_lse"]:
        require(
            window <= 0,
            NotImplementedError,
            f"microbatch_rows {window} with an lse; pass 0",
        )
        window = 0
    if window < 0:
        window = auto_window(q_rows, batch, ratio)
    if 0 < window < q_rows:
        return batch * window_floats(q_rows, ratio, window)
    return batch * batch_floats(q_rows, ratio)


def candidate_size_thd(
    context: KernelContext, arguments: Mapping[str, Any]
) -> tuple[torch.Tensor, int]:
    """Model ``compress_topk_cand_buffer_size_thd``: slab starts int64 (B + 1,) and their total.

    Raises:
        ValueError: Prefix sums or offsets of the wrong shape or dtype.
    """
    cu_q, cu_k = (context.hook.unwrap(arguments[f"cu_seqlens_{side}"]) for side in "qk")
    good = cu_q.ndim == cu_k.ndim == 1 and cu_q.numel() == cu_k.numel() >= 2
    require(good, ValueError, "cu_seqlens_q and cu_seqlens_k must be 1-D of equal length >= 2")
    offsets = causal_offsets(context, arguments, cu_q.numel() - 1, cu_q.device)
    lengths = cu_q.diff().tolist()
    starts = slab_starts(lengths, int(arguments["ratio"]), offsets)
    slabs = context.hook.wrap_like(torch.tensor(starts), arguments["cu_seqlens_q"])
    return slabs, starts[-1]


def slab_starts(lengths: list[int], ratio: int, offsets: list[int] | None) -> list[int]:
    """First float of each segment's slab, and the total behind them (B + 1 entries)."""
    starts = [0]
    for index, rows in enumerate(lengths):
        offset = 0 if offsets is None else offsets[index]
        starts.append(starts[-1] + batch_floats(rows, ratio, offset))
    return starts
