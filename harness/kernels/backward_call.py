"""Validated form of a sparse indexer backward call, in the order in which releases refuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.kernels.context import KernelContext
from harness.kernels.loss_scale import fp32_product, outer_gradient
from harness.kernels.problem import require
from harness.kernels.rules import IndexerBackwardRules
from harness.kernels.workspaces import aligned_bytes, check_workspace

_OUTPUTS = ("d_index_q", "d_weights", "d_index_k")
_GRID_Y = 65535
_BACKENDS = ("default", "sm100_v2")
_PLANES = (96, 128, 148)
_DEPTH = 128
_DTYPES = {
    "index_q": torch.bfloat16,
    "weights": torch.bfloat16,
    "index_k": torch.bfloat16,
    "attn_score": torch.float32,
    "index_score": torch.float32,
    "topk_indices": torch.int32,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseBackwardCall:
    """One call.

    Attributes:
        q: (B, Sq, H, D) bf16, plain.
        w: (B, Sq, H) bf16.
        k: (B, Sk, D) bf16.
        target: (B, Sq, K) fp32, the caller's memory: the signal is written here.
        predict: (B, Sq, K) fp32, the caller's memory.
        ids: (B, Sq, K) int32.
        ids_global: Ids are b * Sk + local.
        checks_owner: The architecture tells another batch's ids apart.
        sm_scale: Factor on the score.
        scale: Loss coefficient / (B * Sq) * outer gradient, as fp32.
        two_terms: dS is a sum of two bf16.
        overwrites_predict: ``predict`` ends up holding the row sums.
        outputs: Caller's buffers by output name.
        dtypes: Dtype of fresh outputs.
    """

    q: torch.Tensor
    w: torch.Tensor
    k: torch.Tensor
    target: torch.Tensor
    predict: torch.Tensor
    ids: torch.Tensor
    ids_global: bool
    checks_owner: bool
    sm_scale: float
    scale: float
    two_terms: bool
    overwrites_predict: bool
    outputs: Mapping[str, torch.Tensor | None]
    dtypes: Mapping[str, torch.dtype]


def prepare_sparse(context: KernelContext, arguments: Mapping[str, Any]) -> SparseBackwardCall:
    """Validate a call.

    Raises:
        ValueError, TypeError, AssertionError, NotImplementedError, RuntimeError: As the release
            refuses arguments.
    """
    rules = context.release.indexer_backward[context.arch]
    second = _check_options(arguments)
    plain = _plain(context, arguments)
    q, k, ids = plain["index_q"], plain["index_k"], plain["topk_indices"]
    for name, tensor, axes in (("index_q", q, 4), ("index_k", k, 3), ("topk_indices", ids, 3)):
        require(tensor.ndim == axes, ValueError, f"{name} has {tensor.ndim} axes; expected {axes}")
    _check_support(context, rules, arguments, plain, second)
    _check_compile(rules, q.shape[2], ids.shape[2], int(arguments["block_I"]))
    if rules.checks_first:
        _check_layout(plain, arguments, context, ValueError)
        if "workspace" in arguments:
            check_workspace(context, arguments["workspace"], _scratch_bytes(arguments, plain))
    outer = outer_gradient(
        context,
        arguments["grad_loss"],
        must_be_tensor=rules.tensor_grad_loss,
        device=q.device,
    )
    if not rules.checks_first:
        _check_scores(plain["attn_score"], plain["index_score"])
    _check_grid(rules, q.shape[0], q.shape[1])
    return _call(context, rules, arguments, plain, outer, second)


def _plain(context: KernelContext, arguments: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: context.hook.unwrap(arguments[name]) for name in _DTYPES}


def _check_options(arguments: Mapping[str, Any]) -> bool:
    """Judge the enumerated options; True when the second backend is asked for."""
    backend = arguments.get("backend", "default")
    require(
        backend in _BACKENDS, ValueError, f"backend is {backend!r}; expected one of {_BACKENDS}"
    )
    planes = arguments.get("deterministic_dk_planes", 96)
    require(
        planes in _PLANES and (planes == 96 or bool(arguments["deterministic"])),
        ValueError,
        f"deterministic_dk_planes is {planes}; expected one of {_PLANES}, other than 96 only with "
        "deterministic=True",
    )
    return bool(backend == "sm100_v2")


def _check_support(
    context: KernelContext,
    rules: IndexerBackwardRules,
    arguments: Mapping[str, Any],
    plain: Mapping[str, torch.Tensor],
    second: bool,
) -> None:
    """Refuse what the release's own support check refuses."""
    heads = plain["index_q"].shape[2]
    deterministic = bool(arguments.get("deterministic", False))
    require(
        not deterministic or plain["index_q"].shape[:2].numel() > 0,
        ValueError,
        "deterministic=True needs at least one query row",
    )
    require(
        second or rules.heads_error is AssertionError or heads >= 64 or heads in rules.small_heads,
        ValueError,
        f"{heads} heads; expected at least 64, or one of {rules.small_heads}",
    )
    if second:
        _check_second_backend(context, rules, arguments, plain)
    if deterministic:
        _check_deterministic(context, rules, arguments, plain, second)
    for name, tensor in plain.items():
        dtype = _DTYPES[name]
        require(tensor.dtype == dtype, ValueError, f"{name} is {tensor.dtype}; expected {dtype}")


def _check_deterministic(
    context: KernelContext,
    rules: IndexerBackwardRules,
    arguments: Mapping[str, Any],
    plain: Mapping[str, torch.Tensor],
    second: bool,
) -> None:
    heads, depth = plain["index_q"].shape[2:]
    slots, served = plain["topk_indices"].shape[2], (64,) if second else (32, 64)
    require(rules.deterministic, ValueError, f"deterministic=True does not run on {context.arch}")
    good = heads in served and depth == _DEPTH and _second_width(slots)
    require(
        good and arguments["block_I"] == 128,
        ValueError,
        f"deterministic=True takes {served} heads, D 128, block_I 128 and top-k widths of 128 to "
        f"2048 in steps of 128; got {heads} heads, D {depth}, {slots} slots",
    )


def _second_width(slots: int) -> bool:
    return slots % 128 == 0 and 128 <= slots <= 2048


def _check_second_backend(
    context: KernelContext,
    rules: IndexerBackwardRules,
    arguments: Mapping[str, Any],
    plain: Mapping[str, torch.Tensor],
) -> None:
    require(
        rules.second_backend,
        RuntimeError,
        f"backend 'sm100_v2' does not run on {context.arch}; use 'default'",
    )
    heads, depth = plain["index_q"].shape[2:]
    slots = plain["topk_indices"].shape[2]
    require(
        heads == 64
        and depth == _DEPTH
        and _second_width(slots)
        and arguments["block_I"] == 128
        and float(arguments["sm_scale"]) > 0.0,
        ValueError,
        f"backend 'sm100_v2' takes 64 heads, D 128, block_I 128, top-k widths of 128 to 2048 in "
        f"steps of 128 and a positive sm_scale; got {heads} heads, D {depth}, {slots} slots",
    )


def _check_compile(rules: IndexerBackwardRules, heads: int, slots: int, block: int) -> None:
    """Refuse what the kernel's constructor asserts; the support check does not see it."""
    require(
        heads >= 64 or heads in rules.small_heads,
        AssertionError,
        f"{heads} heads; the kernel asserts at least 64",
    )
    require(
        slots % block == 0 and (slots > 0 or not rules.positive_width),
        AssertionError,
        f"{slots} slots; the kernel asserts a (positive) multiple of block_I {block}",
    )


def _expected_shapes(plain: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    q, k = plain["index_q"].shape, plain["index_k"].shape
    scores = (*q[:2], plain["topk_indices"].shape[2])
    keys = (q[0], k[1], q[3])
    return {
        "index_q": tuple(q),
        "weights": tuple(q[:3]),
        "index_k": keys,
        "attn_score": scores,
        "index_score": scores,
        "topk_indices": scores,
        "d_index_q": tuple(q),
        "d_weights": tuple(q[:3]),
        "d_index_k": keys,
    }


def _check_layout(
    plain: Mapping[str, torch.Tensor],
    arguments: Mapping[str, Any],
    context: KernelContext,
    error: type[Exception],
) -> None:
    """Judge shapes, contiguity and output dtypes of everything."""
    given = {
        name: context.hook.unwrap(arguments[name])
        for name in _OUTPUTS
        if arguments[name] is not None
    }
    second = arguments.get("backend", "default") == "sm100_v2"
    wide: dict[str, tuple[torch.dtype, ...]] = {
        "d_index_q": (torch.bfloat16,),
        "d_weights": (torch.bfloat16, torch.float32) if second else (torch.bfloat16,),
        "d_index_k": (torch.bfloat16, torch.float32),
    }
    for name, tensor in given.items():
        require(
            tensor.dtype in wide[name],
            error,
            f"{name} is {tensor.dtype}; expected one of {wide[name]}",
        )
    for name, shape in _expected_shapes(plain).items():
        found = plain.get(name, given.get(name))
        require(
            found is None or (tuple(found.shape) == shape and found.is_contiguous()),
            error,
            f"{name} is {None if found is None else tuple(found.shape)}; expected contiguous "
            f"{shape}",
        )


def _scratch_bytes(arguments: Mapping[str, Any], plain: Mapping[str, torch.Tensor]) -> int:
    """Bytes of caller workspace that the call needs."""
    q, k = plain["index_q"], plain["index_k"]
    dense = 4 * q.shape[0] * k.shape[1] * q.shape[3]
    if arguments["deterministic"]:
        return int(arguments["deterministic_dk_planes"]) * dense
    counter = aligned_bytes(8) if arguments["backend"] == "sm100_v2" else 0
    given = arguments["d_index_k"]
    wide = given is not None and given.dtype == torch.float32
    return counter + (0 if wide else aligned_bytes(dense))


def _check_scores(target: torch.Tensor, predict: torch.Tensor) -> None:
    good = target.is_contiguous() and predict.is_contiguous() and target.ndim == 3
    require(
        good and target.shape == predict.shape,
        NotImplementedError,
        "attn_score and index_score must be contiguous 3-D tensors of one shape",
    )


def _check_grid(rules: IndexerBackwardRules, batch: int, rows: int) -> None:
    name, extent = ("query rows", rows) if rules.rows_on_grid_y else ("batches", batch)
    require(extent <= _GRID_Y, RuntimeError, f"{extent} {name}; the grid takes {_GRID_Y}")


def _call(
    context: KernelContext,
    rules: IndexerBackwardRules,
    arguments: Mapping[str, Any],
    plain: Mapping[str, torch.Tensor],
    outer: float,
    second: bool,
) -> SparseBackwardCall:
    q = plain["index_q"]
    per_row = float(arguments["loss_coeff"]) / max(q.shape[0] * q.shape[1], 1)
    return SparseBackwardCall(
        q=q,
        w=plain["weights"],
        k=plain["index_k"],
        target=plain["attn_score"],
        predict=plain["index_score"],
        ids=plain["topk_indices"],
        ids_global=rules.global_only or bool(arguments["topk_indices_global"]),
        checks_owner=rules.checks_owner,
        sm_scale=float(arguments["sm_scale"]),
        scale=fp32_product(per_row, outer),
        two_terms=second,
        overwrites_predict=rules.overwrites_index_score,
        outputs={name: arguments[name] for name in _OUTPUTS},
        dtypes=dict.fromkeys(_OUTPUTS, torch.bfloat16),
    )


def check_late(context: KernelContext, arguments: Mapping[str, Any]) -> None:
    """Judge what early releases only notice at the second launch, with the scores overwritten.

    Raises:
        ValueError: A shape, layout or output dtype.
    """
    rules = context.release.indexer_backward[context.arch]
    if not rules.checks_first:
        _check_layout(_plain(context, arguments), arguments, context, ValueError)
