"""Validated form of a dense indexer backward call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.kernels.context import KernelContext
from harness.kernels.dense_problem import DenseLayout, bshd_layout, is_thd, thd_layout
from harness.kernels.loss_scale import fp32_product, outer_gradient
from harness.kernels.problem import check_size_rule, require
from harness.kernels.rules import DenseBackwardRules
from harness.kernels.workspaces import aligned_bytes, check_workspace

_OUTPUTS = ("d_index_q", "d_weights", "d_index_k")
_GRID_Y = 65535
_INPUTS = (
    "index_q",
    "weights",
    "index_k",
    "attn_score",
    "attn_l1norm",
    "index_score",
    "index_lse",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseBackwardCall:
    """One call, flat over rows and keys.

    Attributes:
        q: (T, H, D) bf16, contiguous.
        w: (T, H) bf16.
        k: (Tk, D) bf16.
        attention: (T, width) fp32, contiguous; the caller's memory or a staged copy.
        scores: (T, width) fp32, as ``attention``.
        norm: (T,) fp32.
        lse: (T,) fp32.
        staged: (copy, original) pairs to be copied back.
        layout: Segments.
        rules: Of the release and architecture.
        block: Columns of one block of the second stage.
        sm_scale: Factor on the score.
        scale: Loss coefficient / rows * outer gradient, as fp32.
        outputs: Caller's buffers by output name.
        dtypes: Dtype of fresh outputs.
        q_shape: Shape of the queries as given.
        k_shape: Shape of the keys as given.
    """

    q: torch.Tensor
    w: torch.Tensor
    k: torch.Tensor
    attention: torch.Tensor
    scores: torch.Tensor
    norm: torch.Tensor
    lse: torch.Tensor
    staged: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    layout: DenseLayout
    rules: DenseBackwardRules
    block: int
    sm_scale: float
    scale: float
    outputs: Mapping[str, torch.Tensor | None]
    dtypes: Mapping[str, torch.dtype]
    q_shape: torch.Size
    k_shape: torch.Size


def prepare_dense(context: KernelContext, arguments: Mapping[str, Any]) -> DenseBackwardCall:
    """Validate a call.

    Raises:
        ValueError, TypeError, RuntimeError: As the release refuses arguments.
    """
    rules = context.release.dense_backward[context.arch]
    plain = {name: context.hook.unwrap(arguments[name]) for name in _INPUTS}
    layout = _layout(context, arguments, plain)
    _check_shapes(plain, layout)
    _check_dtypes(context, arguments, plain)
    _check_values(
        arguments,
        rules,
        plain,
        layout,
        rows_on_grid_y=context.release.indexer_backward[context.arch].rows_on_grid_y,
    )
    _check_outputs(context, arguments, plain)
    outer = outer_gradient(
        context,
        arguments["grad_loss"],
        must_be_tensor=rules.tensor_grad_loss,
        device=plain["index_q"].device,
    )
    given = arguments["d_index_k"]
    if given is None or given.dtype != torch.float32:
        size = aligned_bytes(4 * plain["index_k"].numel())
        check_workspace(context, arguments.get("workspace"), size)
    return _call(arguments, rules, plain, layout, outer)


def _layout(
    context: KernelContext, arguments: Mapping[str, Any], plain: Mapping[str, torch.Tensor]
) -> DenseLayout:
    q, w, k = plain["index_q"], plain["weights"], plain["index_k"]
    ratio, thd = int(arguments["ratio"]), is_thd(arguments)
    axes = (q.ndim, w.ndim, k.ndim)
    expected = (3, 2, 2) if thd else (4, 3, 3)
    require(
        axes == expected,
        ValueError,
        f"index_q, weights and index_k have {axes} axes; expected {expected}",
    )
    require(ratio >= 1, ValueError, f"ratio is {ratio}; expected at least 1")
    require(
        q.shape[-1] == k.shape[-1] and (thd or q.shape[0] == k.shape[0]),
        ValueError,
        f"index_q {tuple(q.shape)} and index_k {tuple(k.shape)} disagree",
    )
    if thd:
        return thd_layout(
            context, arguments, rows=q.shape[0], device=q.device, prefix_error=ValueError
        )
    return bshd_layout(
        context, arguments, batch=q.shape[0], rows=q.shape[1], keys=k.shape[1], device=q.device
    )


def _check_shapes(plain: Mapping[str, torch.Tensor], layout: DenseLayout) -> None:
    scores = (*layout.leading, layout.width)
    for name, shape in (
        ("weights", tuple(plain["index_q"].shape[:-1])),
        ("attn_score", scores),
        ("index_score", scores),
        ("attn_l1norm", layout.leading),
        ("index_lse", layout.leading),
    ):
        found = tuple(plain[name].shape)
        require(found == shape, ValueError, f"{name} has shape {found}; expected {shape}")


def _check_dtypes(
    context: KernelContext, arguments: Mapping[str, Any], plain: Mapping[str, torch.Tensor]
) -> None:
    half = ("index_q", "weights", "index_k")
    for name, tensor in plain.items():
        dtype = torch.bfloat16 if name in half else torch.float32
        require(tensor.dtype == dtype, ValueError, f"{name} is {tensor.dtype}; expected {dtype}")
    for name in _OUTPUTS:
        if arguments[name] is None:
            continue
        wide = (torch.bfloat16, torch.float32) if name == "d_index_k" else (torch.bfloat16,)
        found = context.hook.unwrap(arguments[name]).dtype
        require(found in wide, ValueError, f"{name} is {found}; expected one of {wide}")


def _check_values(
    arguments: Mapping[str, Any],
    rules: DenseBackwardRules,
    plain: Mapping[str, torch.Tensor],
    layout: DenseLayout,
    *,
    rows_on_grid_y: bool,
) -> None:
    block, heads = int(arguments["block_I"]), plain["index_q"].shape[-2]
    require(block > 0, ValueError, f"block_I is {block}; expected a positive number")
    require(heads >= 64, ValueError, f"{heads} heads; expected at least 64")
    extent = layout.max_rows if rows_on_grid_y else len(layout.segments)
    require(extent <= _GRID_Y, RuntimeError, f"{extent} rows or batches; the grid takes {_GRID_Y}")
    check_size_rule(rules.size_rule, layout.max_rows, layout.width, layout.ratio)


def _check_outputs(
    context: KernelContext, arguments: Mapping[str, Any], plain: Mapping[str, torch.Tensor]
) -> None:
    """Judge caller's buffers; early releases do so at the launch, with the same type."""
    for output, name in zip(_OUTPUTS, ("index_q", "weights", "index_k"), strict=True):
        if arguments[output] is None:
            continue
        found = tuple(context.hook.unwrap(arguments[output]).shape)
        shape = tuple(plain[name].shape)
        require(found == shape, ValueError, f"{output} has shape {found}; expected {shape}")


def _call(
    arguments: Mapping[str, Any],
    rules: DenseBackwardRules,
    plain: Mapping[str, torch.Tensor],
    layout: DenseLayout,
    outer: float,
) -> DenseBackwardCall:
    q, k = plain["index_q"], plain["index_k"]
    heads, depth = q.shape[-2:]
    staged = []
    flat: dict[str, torch.Tensor] = {}
    for name in ("attn_score", "index_score"):
        original = plain[name]
        exact = original.contiguous()
        if exact.data_ptr() != original.data_ptr():
            staged.append((exact, original))
        flat[name] = exact.view(layout.rows, layout.width)
    per_row = float(arguments["loss_coeff"]) / max(layout.rows, 1)
    return DenseBackwardCall(
        q=q.reshape(layout.rows, heads, depth),
        w=plain["weights"].reshape(layout.rows, heads),
        k=k.reshape(-1, depth),
        attention=flat["attn_score"],
        scores=flat["index_score"],
        norm=plain["attn_l1norm"].reshape(layout.rows),
        lse=plain["index_lse"].reshape(layout.rows),
        staged=tuple(staged),
        layout=layout,
        rules=rules,
        block=int(arguments["block_I"]),
        sm_scale=float(arguments["sm_scale"]),
        scale=fp32_product(per_row, outer),
        outputs={name: arguments[name] for name in _OUTPUTS},
        dtypes=dict(zip(_OUTPUTS, (q.dtype, plain["weights"].dtype, k.dtype), strict=True)),
        q_shape=q.shape,
        k_shape=k.shape,
    )
