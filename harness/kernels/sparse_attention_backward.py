"""``sparse_attention_backward_wrapper``: gradients of sparse attention with a sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.kernels.addresses import Bounds, Operand
from harness.kernels.attention_call import NAME, AttentionCall, prepare_attention
from harness.kernels.attention_gradient import (
    Statistics,
    attention_statistics,
    group_gradients,
)
from harness.kernels.attention_slots import SlotRules, SlotTable, check_lengths, slot_table
from harness.kernels.context import KernelContext
from harness.kernels.key_rows import Accumulator, KeyRows, Touched
from harness.kernels.outputs import deliver
from harness.kernels.rules import LongLengths
from harness.kernels.tuple_dict import TupleDict

_CHUNK_BYTES = 64 << 20
"""Gathered keys and products held at a time."""
_TILE_ROWS = 64
_KEY_MULTIPLE = {"sm90": 64, "sm100": 8}
"""Rows that the fp32 accumulator of dkv is rounded up to."""


def sparse_attention_backward(context: KernelContext, arguments: Mapping[str, Any]) -> TupleDict:
    """Model one call.

    Returns:
        ``dq`` (T, H, D) and ``dkv`` (S_kv, D) in the dtype of the queries, ``d_sink`` fp32 (H,).

    Raises:
        AddressFault: An unchecked id, or a length above the slots, leads outside an allocation.
        KernelHang: A ``topk_length`` of 0 or less, in releases that do not survive it.
        ValueError, AssertionError, NotImplementedError: As the release refuses arguments.
    """
    call = prepare_attention(context, arguments)
    bounds = context.bounds(NAME)
    rules = _slot_rules(context, call)
    check_lengths(rules, call.ids, call.lengths, bounds)
    _over_read(context, call, bounds)
    statistics = attention_statistics(call.out, call.dout, call.lse, call.sink, guarded=rules.masks)
    d_q, d_kv = _gradients(context, call, rules, statistics, bounds)
    made = {"dq": d_q, "dkv": d_kv, "d_sink": statistics.d_sink}
    dtypes = {"dq": call.q.dtype, "dkv": call.q.dtype, "d_sink": torch.float32}
    given = {"dq": arguments["dq"], "dkv": arguments["dkv"], "d_sink": None}
    return deliver(context, arguments["q"], made, given, dtypes)


def _slot_rules(context: KernelContext, call: AttentionCall) -> SlotRules:
    defects, arch = context.defects, context.arch
    long_lengths = call.rules.long_lengths
    if "long_topk_lengths" not in defects:
        long_lengths = LongLengths.CLAMPED
    return SlotRules(
        kernel=NAME,
        arch=arch,
        masks=("d785" if arch == "sm90" else "d877") not in defects,
        long_lengths=long_lengths,
        hangs_on_empty=arch == "sm100" and "d433" in defects,
        key_limit=call.kv.shape[0] if "d298" in defects else None,
        keys=call.kv.shape[0],
    )


def _over_read(context: KernelContext, call: AttentionCall, bounds: Bounds) -> None:
    """Record the read past the statistics of SM100 calls (``lse_over_read``).

    The workspace lies in a larger block of the caching allocator, so nobody has seen it trap.
    """
    tokens, heads = call.lse.shape
    past = -heads % _TILE_ROWS
    if "lse_over_read" not in context.defects or context.arch != "sm100" or past == 0:
        return
    if (call.q.shape[2], heads) in call.rules.own_kernels or tokens == 0:
        return
    end = tokens * heads
    operand = Operand(
        name="statistics",
        allocation=end + past,
        base=0,
        shape=(tokens, heads),
        strides=(heads, 1),
    )
    bounds.touch(operand, row=tokens - 1, index=heads, offset=end, row_span=(0, end))


def _gradients(
    context: KernelContext,
    call: AttentionCall,
    rules: SlotRules,
    statistics: Statistics,
    bounds: Bounds,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dq in the query's dtype and dkv in fp32, made some groups of rows at a time."""
    heads, depth = call.q.shape[1:]
    group = _group_rows(context, heads)
    flat = _grouped(call, statistics, group)
    groups = flat["q"].shape[0]
    token = (torch.arange(groups) * group).div(heads, rounding_mode="floor")
    reader = KeyRows.of("kv", call.kv, bounds)
    sums = Accumulator.of(
        "dkv", call.kv.shape[0], depth, bounds, multiple=_KEY_MULTIPLE[context.arch]
    )
    d_q = torch.empty(flat["q"].shape, dtype=call.q.dtype)
    slots = max(call.ids.shape[1], 1)
    step = max(1, _CHUNK_BYTES // (4 * slots * (2 * depth + 3 * group)))
    for top in range(0, groups, step):
        part = slice(top, min(top + step, groups))
        table = slot_table(rules, call.ids, call.lengths, token[part])
        made = group_gradients(
            flat["q"][part].float(),
            flat["dout"][part].float(),
            reader.gather(_reading(table, rules.keys, top)),
            table.live,
            flat["log_mass"][part],
            flat["delta"][part],
            scale=call.scale,
            dtype=call.q.dtype,
            scales_first=call.rules.scales_first,
        )
        d_q[part] = made.queries.to(call.q.dtype)
        sums.add(_writing(table, rules.keys, top), made.keys)
    return d_q.view(-1, depth)[: call.q.shape[0] * heads].view(call.q.shape), sums.result


def _reading(table: SlotTable, keys: int, first: int) -> Touched:
    return Touched(rows=table.read_rows, mask=table.reads, low=0, high=keys, first=first)


def _writing(table: SlotTable, keys: int, first: int) -> Touched:
    return Touched(rows=table.write_rows, mask=table.writes, low=0, high=keys, first=first)


def _group_rows(context: KernelContext, heads: int) -> int:
    """Rows that share the ids of their first row's token: a token's heads, or a tile (``d384``)."""
    if context.arch == "sm90" and "d384" in context.defects and heads % _TILE_ROWS:
        return _TILE_ROWS
    return heads


def _grouped(call: AttentionCall, statistics: Statistics, group: int) -> dict[str, torch.Tensor]:
    """Cut the (token, head) rows into groups, padding the last one with zero rows."""
    rows = call.q.shape[0] * call.q.shape[1]
    missing = -rows % group
    cut = {}
    for name, tensor in (
        ("q", call.q),
        ("dout", call.dout),
        ("log_mass", statistics.log_mass),
        ("delta", statistics.delta),
    ):
        flat = tensor.reshape(rows, *tensor.shape[2:])
        if missing:
            padding = flat.new_zeros(missing, *flat.shape[1:])
            flat = torch.cat([flat, padding])
        cut[name] = flat.view(-1, group, *flat.shape[1:])
    return cut
