"""``flash_mla_sparse_fwd``: sparse MLA prefill over given KV rows (FlashMLA, nv_dev interface).

Source of the rules: docstring and reference test of https://github.com/deepseek-ai/FlashMLA .
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.kernels.addresses import Bounds, Operand
from harness.kernels.context import NotModelledError
from harness.kernels.poison import poisoned
from harness.kernels.problem import require
from harness.kernels.releases import Arch
from harness.kernels.signatures import build
from harness.kernels.wrapping import PLAIN_HOOK, TensorHook
from harness.record.evidence import AddressFaultEvidence

NAME = "flash_mla_sparse_fwd"
SIGNATURE = build(
    "q",
    "kv",
    "indices",
    "sm_scale",
    d_v=512,
    attn_sink=None,
    topk_length=None,
    indexer_topk=0,
)
VALUE_DIM = 512
_DEPTHS = (512, 576)
_TOPK_MULTIPLE = 128
_HEADS = {"sm90": "a multiple of 64", "sm100": "64 or a multiple of 128"}
_CHUNK_BYTES = 64 << 20
"""Gathered keys held at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashMlaContext:
    """What the model gets beside its arguments.

    Attributes:
        arch: Architecture; decides the head rule.
        hook: Tensor types of the caller.
        findings: Silent out-of-row accesses, appended to.
    """

    arch: Arch
    hook: TensorHook = PLAIN_HOOK
    findings: list[AddressFaultEvidence] = field(default_factory=list)


def flash_mla_sparse_fwd(
    context: FlashMlaContext, arguments: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Model one call.

    An id is a row of ``kv``; ids outside it and slots from ``topk_length`` on are ignored. P is
    rounded to bf16 before its product with the values, as the tensor cores need it.

    Returns:
        ``out`` bf16 (s_q, h_q, d_v), with the sink's mass; ``max_logits`` and ``lse`` fp32
        (s_q, h_q) without the sink, natural logarithm; a row without keys has out 0, max_logits
        -inf, lse +inf.

    Raises:
        RuntimeError: Shapes, dtypes or sizes the kernel refuses.
        AddressFault: A ``topk_length`` past the slots leads outside ``indices``.
    """
    unwrap = context.hook.unwrap
    q, kv, indices = (unwrap(arguments[name]) for name in ("q", "kv", "indices"))
    _check(context.arch, q, kv, indices, arguments)
    rows, slots = indices.shape[0], indices.shape[-1]
    ids = indices[:, 0]
    lengths = _lengths(context, arguments, ids)
    sink = arguments["attn_sink"]
    if sink is not None:
        sink = unwrap(sink).float()
    out = poisoned((rows, q.shape[1], VALUE_DIM), torch.bfloat16)
    max_logits = poisoned((rows, q.shape[1]), torch.float32)
    lse = poisoned((rows, q.shape[1]), torch.float32)
    kv_rows = kv[:, 0]
    step = max(1, _CHUNK_BYTES // (4 * max(slots, 1) * q.shape[2]))
    for top in range(0, rows, step):
        part = slice(top, min(top + step, rows))
        used = int(lengths[part].max()) if lengths is not None else slots
        chosen = ids[part, : min(max(used, 0), slots)].to(torch.int64)
        valid = (chosen >= 0) & (chosen < kv.shape[0])
        if lengths is not None:
            valid &= torch.arange(chosen.shape[1]) < lengths[part].unsqueeze(1)
        _attend(
            q[part].float(),
            kv_rows,
            chosen,
            valid,
            float(arguments["sm_scale"]),
            sink,
            (out[part], max_logits[part], lse[part]),
        )
    wrap, like = context.hook.wrap_like, arguments["q"]
    return wrap(out, like), wrap(max_logits, like), wrap(lse, like)


def _check(
    arch: Arch,
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    arguments: Mapping[str, Any],
) -> None:
    """Refuse what the extension refuses (it raises RuntimeError throughout)."""
    shapes = q.ndim == kv.ndim == indices.ndim == 3 and kv.shape[1] == indices.shape[1] == 1
    require(
        shapes and q.shape[2] == kv.shape[2] and q.shape[0] == indices.shape[0],
        RuntimeError,
        f"q {tuple(q.shape)}, kv {tuple(kv.shape)}, indices {tuple(indices.shape)}; expected "
        "(s_q, h_q, d), (s_kv, 1, d), (s_q, 1, topk)",
    )
    dtypes = (q.dtype, kv.dtype, indices.dtype)
    require(
        dtypes == (torch.bfloat16, torch.bfloat16, torch.int32),
        RuntimeError,
        f"dtypes of q, kv, indices are {dtypes}; expected bfloat16, bfloat16, int32",
    )
    for name, tensor in (("q", q), ("kv", kv), ("indices", indices)):
        require(
            tensor.stride(-1) == 1,
            RuntimeError,
            f"{name} has strides {tuple(tensor.stride())}; expected a unit last stride",
        )
    _check_sizes(arch, q.shape[1], q.shape[2], indices.shape[2], arguments)
    for name, shape, dtype in (
        ("attn_sink", (q.shape[1],), torch.float32),
        ("topk_length", (q.shape[0],), torch.int32),
    ):
        tensor = arguments[name]
        require(
            tensor is None or (tuple(tensor.shape) == shape and tensor.dtype == dtype),
            RuntimeError,
            f"{name} must be {dtype} {shape}",
        )


def _check_sizes(
    arch: Arch, heads: int, depth: int, slots: int, arguments: Mapping[str, Any]
) -> None:
    """Refuse sizes that no kernel is built for."""
    require(
        depth in _DEPTHS and arguments["d_v"] == VALUE_DIM,
        RuntimeError,
        f"d is {depth} and d_v {arguments['d_v']}; expected d in {_DEPTHS} and d_v {VALUE_DIM}",
    )
    served = heads > 0 and heads % 64 == 0
    if arch == "sm100":
        served = served and (heads == 64 or heads % 128 == 0)
    require(served, RuntimeError, f"{heads} query heads on {arch}; expected {_HEADS[arch]}")
    require(
        slots > 0 and slots % _TOPK_MULTIPLE == 0,
        RuntimeError,
        f"topk is {slots}; expected a multiple of {_TOPK_MULTIPLE} (pad with -1)",
    )
    require(
        arguments["indexer_topk"] == 0,
        NotModelledError,
        "indexer_topk above 0 (a second lse) is not modelled",
    )


def _lengths(
    context: FlashMlaContext, arguments: Mapping[str, Any], ids: torch.Tensor
) -> torch.Tensor | None:
    """Read ``topk_length`` and judge the id slots it makes the kernel load."""
    given = arguments["topk_length"]
    if given is None:
        return None
    lengths = context.hook.unwrap(given).to(torch.int64)
    slots = ids.shape[1]
    long_rows = torch.nonzero(lengths > slots).flatten().tolist()
    if long_rows:
        operand, bounds = Operand.of("indices", ids), Bounds(kernel=NAME, findings=context.findings)
        for row in long_rows:
            start = operand.offset(row, 0)
            bounds.touch_run(
                operand,
                row=row,
                first_index=0,
                count=int(lengths[row]),
                first_offset=start,
                row_span=(start, start + slots),
            )
    return lengths


def _attend(
    q: torch.Tensor,
    kv: torch.Tensor,
    chosen: torch.Tensor,
    valid: torch.Tensor,
    sm_scale: float,
    sink: torch.Tensor | None,
    outputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """Attention of some rows over their gathered keys: q (r, H, D) fp32, chosen (r, K)."""
    out, max_logits, lse = outputs
    if chosen.shape[1] == 0:
        out.zero_()
        max_logits.fill_(float("-inf"))
        lse.fill_(float("inf"))
        return
    # Ignored slots gather row 0, and a NaN there must not reach the product.
    gathered = kv[torch.where(valid, chosen, 0)].float()
    gathered.masked_fill_(~valid.unsqueeze(2), 0.0)
    logits = torch.bmm(q, gathered.transpose(1, 2)).mul_(sm_scale)
    logits.masked_fill_(~valid.unsqueeze(1), float("-inf"))
    largest = logits.amax(dim=2)
    empty = ~valid.any(dim=1, keepdim=True).expand_as(largest)
    shift = largest.masked_fill(empty, 0.0)
    weights = logits.sub_(shift.unsqueeze(2)).exp_()
    total = weights.sum(dim=2)
    values = gathered[..., :VALUE_DIM]
    product = torch.bmm(weights.to(torch.bfloat16).float(), values)
    mass = total if sink is None else total + (sink - shift).exp()
    product.div_(mass.masked_fill(mass == 0, 1.0).unsqueeze(2))
    max_logits.copy_(largest)
    lse.copy_((shift + total.log()).masked_fill(empty, float("inf")))
    out.copy_(product.masked_fill_(empty.unsqueeze(2), 0.0))
