"""``indexer_top_k_wrapper``: the top_k largest columns of every row, local ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from harness.kernels import ranking
from harness.kernels.context import KernelContext
from harness.kernels.elsewhere import plant_top_k
from harness.kernels.phantom import phantom_row
from harness.kernels.poison import poisoned
from harness.kernels.selection import HIDDEN_KEY, select_columns, shuffle_slots
from harness.kernels.topk_call import TopKCall, prepare_call
from harness.kernels.topk_plan import VECTOR_BYTES, row_plan
from harness.kernels.tuple_dict import TupleDict

NAME = "indexer_top_k_wrapper"
_CHUNK_ELEMENTS = 1 << 23
"""Keys held at a time."""


def indexer_top_k(context: KernelContext, arguments: Mapping[str, Any]) -> TupleDict:
    """Model one call.

    Returns:
        ``indices`` int32 (n_rows, top_k) and ``values`` in the input dtype (None without
        ``return_val``). A row of length <= top_k holds 0..length-1 in order, then -1 / -inf; a
        longer one holds top_k distinct columns in no particular order.

    Raises:
        RuntimeError: The release does not run on the architecture.
        AddressFault: An address leaves an allocation or the 32-bit range.
        ValueError, AssertionError: As the release refuses arguments.
    """
    call = prepare_call(context, arguments, context.bounds(NAME), NAME)
    indices = poisoned((call.plan.n_rows, call.plan.top_k), torch.int32)
    kept = bool(arguments["return_val"])
    out_values = poisoned(tuple(indices.shape), call.values.dtype) if kept else None
    _fill_short(call, indices, out_values)
    odd = _past_length(context, call)
    odd += _fill_ranked(context, call, odd, indices, out_values)
    for row in odd:
        _fill_odd(context, call, row, indices, out_values)
    plant_top_k(context, call, indices, out_values)
    wrap, like = context.hook.wrap_like, arguments["input_values"]
    return TupleDict(
        indices=wrap(indices, like), values=None if out_values is None else wrap(out_values, like)
    )


def _fill_short(call: TopKCall, indices: torch.Tensor, out_values: torch.Tensor | None) -> None:
    """Rows of length <= top_k: every column in order, no ranking."""
    rows = torch.nonzero(call.lengths <= call.plan.top_k).flatten()
    if rows.numel() == 0:
        return
    lengths = call.lengths[rows].unsqueeze(1)
    slots = torch.arange(call.plan.top_k).unsqueeze(0)
    inside = slots < lengths
    indices[rows] = torch.where(inside, slots, -1).to(torch.int32)
    if out_values is None:
        return
    width = call.plan.num_cols
    for row in rows[call.lengths[rows] > width].tolist():
        call.reader.read_run(row, int(call.lengths[row]))
    starts = (rows * width + int(call.values.storage_offset())).unsqueeze(1)
    addresses = torch.where(inside, starts + slots, starts)
    found = call.reader.storage[addresses]
    out_values[rows] = torch.where(inside, found, float("-inf"))


def _past_length(context: KernelContext, call: TopKCall) -> list[int]:
    """Ranked rows that read behind their columns or their length."""
    lengths, plan = call.lengths, call.plan
    odd = lengths > plan.num_cols
    if "short_rows" in context.defects and bool((lengths < VECTOR_BYTES).any()):
        starts = torch.arange(plan.n_rows) * plan.num_cols * plan.element_bytes
        prologue = torch.remainder(-starts, VECTOR_BYTES) // plan.element_bytes
        odd |= prologue > lengths
    return torch.nonzero(odd & (lengths > plan.top_k)).flatten().tolist()


def _fill_ranked(
    context: KernelContext,
    call: TopKCall,
    odd: list[int],
    indices: torch.Tensor,
    out_values: torch.Tensor | None,
) -> list[int]:
    """Rows longer than top_k, many at a time.

    Returns:
        Rows whose cut lies in the -inf bucket while ``d446`` is on; they are to be done again.
    """
    plan = call.plan
    regular = call.lengths > plan.top_k
    regular[odd] = False
    rows = torch.nonzero(regular).flatten()
    again: list[int] = []
    for part in torch.split(rows, max(1, _CHUNK_ELEMENTS // plan.num_cols)):
        lengths = call.lengths[part]
        if part.numel() == 0:
            continue
        shortest, width = (int(v) for v in torch.aminmax(lengths))
        whole = part.numel() == plan.n_rows
        scores = call.values[:, :width] if whole else call.values[part, :width]
        keys = ranking.top_k_order(scores)
        if shortest < width:
            keys.masked_fill_(
                torch.arange(width) >= lengths.unsqueeze(1),
                ranking.HIDDEN if keys.dtype == torch.int64 else HIDDEN_KEY,
            )
        picks = select_columns(keys, plan.top_k, call.ties, context.generator)
        picks = _ordered(context, call, picks)
        indices[part] = picks.to(torch.int32)
        if out_values is not None:
            out_values[part] = scores.gather(1, picks)
        if "d446" in context.defects:
            # Fewer than top_k entries above the -inf bucket: the k-th best lies in it.
            worst = keys.gather(1, picks).amin(dim=1)
            again += part[worst <= ranking.minus_inf_bucket_key(scores.dtype)].tolist()
    return again


def _ordered(context: KernelContext, call: TopKCall, picks: torch.Tensor) -> torch.Tensor:
    return picks.sort(dim=1).values if call.ascending else shuffle_slots(picks, context.generator)


def _fill_odd(
    context: KernelContext,
    call: TopKCall,
    row: int,
    indices: torch.Tensor,
    out_values: torch.Tensor | None,
) -> None:
    """One row that reads past its length, its columns or its tensor."""
    plan, reader = call.plan, call.reader
    length = int(call.lengths[row])
    loads = row_plan(plan, length=length, start_bytes=reader.start_bytes(row))
    if "short_rows" in context.defects:
        length = max(length, loads.prologue)
    scores = reader.read_run(row, length).unsqueeze(0)
    few = int((ranking.coarse_bucket(scores) < ranking.MINUS_INF_BUCKET[scores.dtype]).sum())
    if "d446" in context.defects and few < plan.top_k and loads.phantom > 0:
        rng = context.numpy_generator()
        ids = phantom_row(plan, loads, reader, row=row, length=length, rng=rng)
        picks = torch.from_numpy(ids).unsqueeze(0)
    else:
        keys = ranking.top_k_order(scores)
        picks = select_columns(keys, plan.top_k, call.ties, context.generator)
        picks = _ordered(context, call, picks)
        if not plan.wide_ids:
            picks = picks % 65536
    indices[row] = picks[0].to(torch.int32)
    if out_values is not None:
        out_values[row] = reader.read(row, picks[0].numpy())
