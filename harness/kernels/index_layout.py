"""``local_to_global_wrapper`` and ``compactify_wrapper``: id tables between their two layouts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.kernels.context import KernelContext
from harness.kernels.problem import require
from harness.kernels.tuple_dict import TupleDict


def local_to_global(context: KernelContext, arguments: Mapping[str, Any]) -> TupleDict:
    """Model ``local_to_global_wrapper``: local + b * seqlen_k, or + cu_seqlens_k[b] under THD.

    Ids have no upper check. A packed row behind the last prefix sum counts to the last segment.

    Returns:
        ``indices`` int32 in the shape of the input; any negative id becomes -1.

    Raises:
        TypeError: Ids that are neither int32 nor int64.
        ValueError: Axes, layout, or prefix sums.
    """
    ids = context.hook.unwrap(arguments["local_indices"])
    require(ids.is_contiguous(), ValueError, "local_indices must be contiguous")
    require(
        ids.dtype in (torch.int32, torch.int64),
        TypeError,
        f"local_indices are {ids.dtype}; expected int32 or int64",
    )
    given = [arguments[name] is not None for name in ("cu_seqlens_q", "cu_seqlens_k")]
    if any(given):
        offsets = _packed_offsets(context, arguments, ids, all(given))
    else:
        require(ids.ndim == 3, ValueError, f"local_indices have {ids.ndim} axes; expected 3")
        offsets = torch.arange(ids.shape[0]).view(-1, 1, 1) * int(arguments["seqlen_k"])
    made = torch.where(ids >= 0, ids.to(torch.int64) + offsets, -1).to(torch.int32)
    return TupleDict(indices=context.hook.wrap_like(made, arguments["local_indices"]))


def _packed_offsets(
    context: KernelContext, arguments: Mapping[str, Any], ids: torch.Tensor, both: bool
) -> torch.Tensor:
    """First key of each row's segment, int64 (T, 1)."""
    require(both, ValueError, "THD needs both cu_seqlens_q and cu_seqlens_k")
    require(ids.ndim == 2, ValueError, f"THD local_indices have {ids.ndim} axes; expected 2")
    cu_q, cu_k = (context.hook.unwrap(arguments[f"cu_seqlens_{side}"]) for side in "qk")
    for name, tensor in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        require(
            tensor.dtype == torch.int32 and tensor.ndim == 1 and tensor.is_contiguous(),
            ValueError,
            f"{name} is {tensor.dtype} {tuple(tensor.shape)}; expected contiguous 1-D int32",
        )
    require(
        cu_q.shape == cu_k.shape,
        ValueError,
        f"prefix sums have {cu_q.numel()} and {cu_k.numel()} entries; expected the same",
    )
    rows = torch.arange(ids.shape[0], dtype=torch.int32)
    segment = torch.searchsorted(cu_q, rows, right=True) - 1
    return cu_k.to(torch.int64)[segment.clamp(0, max(cu_q.numel() - 2, 0))].unsqueeze(1)


def compactify(context: KernelContext, arguments: Mapping[str, Any]) -> TupleDict:
    """Model ``compactify_wrapper``: ids >= 0 to the front of each row, in their order.

    Returns:
        ``indices`` int32 (rows, K) with a -1 tail, and ``topk_length`` int32 (rows,); three axes
        are flattened batch-major.

    Raises:
        TypeError: Ids that are not int32.
        ValueError: Other than two or three axes.
    """
    ids = context.hook.unwrap(arguments["indices"])
    require(ids.dtype == torch.int32, TypeError, f"indices are {ids.dtype}; expected int32")
    require(ids.ndim in (2, 3), ValueError, f"indices have {ids.ndim} axes; expected 2 or 3")
    flat = ids.reshape(-1, ids.shape[-1])
    order = torch.sort((flat < 0).to(torch.int8), dim=1, stable=True).indices
    packed = flat.gather(1, order)
    packed = torch.where(packed < 0, -1, packed).to(torch.int32)
    wrap, like = context.hook.wrap_like, arguments["indices"]
    lengths = (flat >= 0).sum(dim=1).to(torch.int32)
    return TupleDict(indices=wrap(packed, like), topk_length=wrap(lengths, like))
