"""Validated form of a sparse attention backward call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from harness.kernels.attention_gradient import VALUE_DIM
from harness.kernels.context import KernelContext, NotModelledError
from harness.kernels.problem import require
from harness.kernels.rules import AttentionBackwardRules
from harness.kernels.workspaces import aligned_bytes, check_workspace

NAME = "sparse_attention_backward_wrapper"
_DEPTHS = (512, 576)
_CLUSTER_MODES = ("off", "adaptive_pair")
_PAIR_BYTES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionCall:
    """One call; everything plain and contiguous.

    Attributes:
        q: (T, H, D) fp16 or bf16.
        kv: (S_kv, D); not copied, its allocation matters.
        out: (T, H, 512).
        dout: (T, H, 512).
        lse: (T, H) fp32, without the sink.
        sink: (H,) fp32.
        ids: (T, K) int32, rows of kv; not copied.
        lengths: int64 (T,), None when not given.
        scale: Softmax scale.
        rules: Of the release and architecture.
    """

    q: torch.Tensor
    kv: torch.Tensor
    out: torch.Tensor
    dout: torch.Tensor
    lse: torch.Tensor
    sink: torch.Tensor
    ids: torch.Tensor
    lengths: torch.Tensor | None
    scale: float
    rules: AttentionBackwardRules


def prepare_attention(context: KernelContext, arguments: Mapping[str, Any]) -> AttentionCall:
    """Validate a call.

    Raises:
        NotImplementedError: A shape that the release takes and works on out of bounds.
        ValueError, AssertionError: As the release refuses arguments.
    """
    rules = context.release.attention_backward[context.arch]
    plain = {
        name: context.hook.unwrap(arguments[name])
        for name in ("q", "kv", "out", "dout", "lse", "attn_sink", "topk_idxs")
    }
    lengths = arguments["topk_length"]
    if lengths is not None:
        lengths = context.hook.unwrap(lengths)
    _check_dtypes(rules, plain, lengths)
    _check_options(context, rules, arguments, plain["q"])
    _check_shapes(context, rules, plain, lengths)
    _check_launch(context, rules, arguments, plain)
    scale = arguments["softmax_scale"]
    return AttentionCall(
        q=plain["q"].contiguous(),
        kv=plain["kv"].contiguous(),
        out=plain["out"],
        dout=plain["dout"],
        lse=plain["lse"].contiguous(),
        sink=plain["attn_sink"],
        ids=plain["topk_idxs"].contiguous(),
        lengths=None if lengths is None else lengths.to(torch.int64),
        scale=plain["q"].shape[2] ** -0.5 if scale is None else float(scale),
        rules=rules,
    )


def _check_dtypes(
    rules: AttentionBackwardRules,
    plain: Mapping[str, torch.Tensor],
    lengths: torch.Tensor | None,
) -> None:
    q = plain["q"]
    require(q.ndim == 3, ValueError, f"q has {q.ndim} axes; expected (T, H, D)")
    require(plain["kv"].ndim == 2, ValueError, f"kv has {plain['kv'].ndim} axes; expected 2")
    require(
        q.dtype in (torch.float16, torch.bfloat16),
        ValueError,
        f"q is {q.dtype}; expected float16 or bfloat16",
    )
    # The first releases notice the companions' dtypes in the architecture's own checks.
    late = ValueError if rules.checks_shapes else AssertionError
    for name, dtype, error in (
        ("kv", q.dtype, ValueError),
        ("lse", torch.float32, ValueError),
        ("attn_sink", torch.float32, ValueError),
        ("topk_idxs", torch.int32, ValueError),
        ("out", q.dtype, late),
        ("dout", q.dtype, late),
    ):
        found = plain[name].dtype
        require(found == dtype, error, f"{name} is {found}; expected {dtype}")
    require(
        lengths is None or lengths.dtype == torch.int32,
        late,
        f"topk_length is {None if lengths is None else lengths.dtype}; expected int32",
    )


def _check_options(
    context: KernelContext,
    rules: AttentionBackwardRules,
    arguments: Mapping[str, Any],
    q: torch.Tensor,
) -> None:
    mode = arguments.get("q_cluster_mode", "off")
    require(
        mode in _CLUSTER_MODES,
        ValueError,
        f"q_cluster_mode is {mode!r}; expected one of {_CLUSTER_MODES}",
    )
    heads, depth = q.shape[1:]
    slots = arguments["topk_idxs"].shape[-1]
    pairs = (
        context.arch == "sm100"
        and q.dtype == torch.bfloat16
        and heads in (16, 32)
        and depth == 576
        and not arguments.get("deterministic", False)
        and 0 < slots <= 2048
    )
    require(
        mode == "off" or pairs,
        ValueError,
        "q_cluster_mode 'adaptive_pair' takes bf16, 16 or 32 heads, D 576 and 1 to 2048 slots on "
        "sm100 without deterministic",
    )
    require(
        not arguments.get("deterministic", False) or heads in rules.deterministic_heads,
        ValueError,
        f"deterministic=True on {context.arch} takes heads in {rules.deterministic_heads}; got "
        f"{heads}",
    )


def _check_shapes(
    context: KernelContext,
    rules: AttentionBackwardRules,
    plain: Mapping[str, torch.Tensor],
    lengths: torch.Tensor | None,
) -> None:
    tokens, heads, depth = plain["q"].shape
    # Releases that check nothing take any shape, and the kernels work on it out of bounds.
    error: type[Exception] = ValueError if rules.checks_shapes else NotModelledError
    if context.arch == "sm90" and not rules.checks_shapes:
        require(depth in _DEPTHS, AssertionError, f"D is {depth}; expected one of {_DEPTHS}")
    require(depth in _DEPTHS, error, f"D is {depth}; expected one of {_DEPTHS}")
    values = (tokens, heads, VALUE_DIM)
    for name, shape in (
        ("kv", (plain["kv"].shape[0], depth)),
        ("out", values),
        ("dout", values),
        ("lse", (tokens, heads)),
        ("attn_sink", (heads,)),
    ):
        found = tuple(plain[name].shape)
        require(found == shape, error, f"{name} has shape {found}; expected {shape}")
    ids = plain["topk_idxs"]
    require(
        ids.ndim == 2 and ids.shape[0] == tokens,
        error,
        f"topk_idxs has shape {tuple(ids.shape)}; expected ({tokens}, K)",
    )
    require(
        lengths is None or tuple(lengths.shape) == (tokens,),
        error,
        f"topk_length must have shape ({tokens},)",
    )


def _check_launch(
    context: KernelContext,
    rules: AttentionBackwardRules,
    arguments: Mapping[str, Any],
    plain: Mapping[str, torch.Tensor],
) -> None:
    """Refuse what the architecture's launch code refuses."""
    q, kv, lse = plain["q"], plain["kv"], plain["lse"]
    if context.arch == "sm90":
        require(q.shape[1] > 1, AssertionError, "one query head; expected more than one")
    if "workspace" in arguments:
        check_workspace(
            context,
            arguments["workspace"],
            _scratch_bytes(context, q, kv),
            bytes_only=context.arch == "sm100",
        )
    start = lse.storage_offset() * lse.element_size()
    require(
        not rules.aligned_lse or not lse.is_contiguous() or start % _PAIR_BYTES == 0,
        ValueError,
        f"lse starts at byte {start}; expected a multiple of {_PAIR_BYTES}",
    )
    error = AssertionError if context.arch == "sm100" else ValueError
    for name, like in (("dq", q), ("dkv", kv)):
        if arguments[name] is None:
            continue
        given = context.hook.unwrap(arguments[name])
        require(
            given.shape == like.shape and given.dtype == like.dtype,
            error,
            f"{name} is {given.dtype} {tuple(given.shape)}; expected {like.dtype} "
            f"{tuple(like.shape)}",
        )


def _scratch_bytes(context: KernelContext, q: torch.Tensor, kv: torch.Tensor) -> int:
    """Least bytes of a caller's workspace for the plain, non-deterministic kernel."""
    tokens, heads, depth = q.shape
    if context.arch == "sm90":
        statistics = aligned_bytes(4 * _up(tokens, 64) * heads)
        return 2 * statistics + aligned_bytes(4 * _up(kv.shape[0], 64) * _up(depth, 32))
    return 8 * _up(tokens, 8) * heads + 4 * _up(kv.shape[0], 8) * _up(depth, 8)


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
