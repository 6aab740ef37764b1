"""Which key each slot of sparse recompute multiplies with, and whether the slot counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.kernels.addresses import Bounds, Operand
from harness.kernels.context import KernelContext
from harness.kernels.key_rows import KeyRows, Touched
from harness.kernels.recompute_call import SparseRecomputeCall


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotKeys:
    """What all chunks of a call share.

    Attributes:
        reader: Keys by flat row.
        stale: (D,) what shared memory holds in place of a key that was not loaded: one random row
            per call, so that results that depend on it are told from results that do not.
        bounds: Judge.
    """

    reader: KeyRows
    stale: torch.Tensor
    bounds: Bounds

    @classmethod
    def of(cls, context: KernelContext, call: SparseRecomputeCall) -> SlotKeys:
        """Prepare a call."""
        bounds = context.bounds(call.name)
        keys = call.k.reshape(-1, call.k.shape[2])
        stale = torch.randn(keys.shape[1], generator=context.generator).bfloat16().float()
        return cls(reader=KeyRows.of("keys", keys, bounds), stale=stale, bounds=bounds)


def slot_keys(
    context: KernelContext, call: SparseRecomputeCall, keys: SlotKeys, part: slice
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gathered keys of some rows and the slots that count.

    Args:
        context: Architecture and defects.
        call: The call.
        keys: Shared state.
        part: Flat rows b * Sq + q.

    Returns:
        fp32 (R, K, D) and bool (R, K).

    Raises:
        AddressFault: An unchecked id or a length leads outside an allocation.
    """
    rows = call.ids.shape[1]
    count = call.k.shape[1]
    raw = call.ids.flatten(0, 1)[part].to(torch.int64)
    owner = torch.arange(part.start, part.stop).div(rows, rounding_mode="floor").unsqueeze(1)
    low = owner * count
    local = raw - low if call.ids_global else raw
    used = _used(context, call, keys.bounds, part)
    inside = (local >= 0) & (local < count)
    touched = inside & used
    counted = touched
    unchecked = False
    if "invalid_slots" in context.defects:
        # With lengths the mask looks at nothing but the position, without them at the raw id.
        positional = call.lengths is not None and call.tile.compact
        counted = used if positional else used & (raw >= 0)
        unchecked = context.arch == "sm100" and call.attention and call.tile.compact
    if unchecked:
        touched = used
    gathered = keys.reader.gather(
        Touched(rows=local + low, mask=touched, low=low, high=low + count, first=part.start)
    )
    if context.arch == "sm100":
        gathered[counted & ~touched] = keys.stale
    return gathered, counted


def _takes_lengths(context: KernelContext, call: SparseRecomputeCall) -> bool:
    """Whether the kernel of this call reads ``topk_length``."""
    if call.lengths is None:
        return False
    if context.arch == "sm90" or "d1549" not in context.defects:
        return True
    return call.tile.compact


def _used(
    context: KernelContext, call: SparseRecomputeCall, bounds: Bounds, part: slice
) -> torch.Tensor:
    """Slots below the length, bool (R, K)."""
    slots = call.ids.shape[2]
    everywhere = torch.ones(part.stop - part.start, slots, dtype=torch.bool)
    if call.lengths is None or not _takes_lengths(context, call):
        return everywhere
    lengths = call.lengths.view(-1)[part].to(torch.int64)
    if "long_topk_lengths" in context.defects and _reads_on(context, call):
        operand = Operand.of("topk_indices", call.ids.flatten(0, 1))
        judge_lengths(bounds, operand, lengths, part.start)
    return torch.arange(slots) < lengths.unsqueeze(1)


def _reads_on(context: KernelContext, call: SparseRecomputeCall) -> bool:
    """Whether the loop over ids ends at the length alone; the SM100 indexer's has a fixed end."""
    return context.arch == "sm90" or call.attention


def judge_lengths(bounds: Bounds, operand: Operand, lengths: torch.Tensor, first_row: int) -> None:
    """Judge the ids that lengths above the slots make a kernel read.

    Args:
        bounds: Judge.
        operand: Ids (T, K), contiguous.
        lengths: int64 (R,) of rows ``first_row`` on.
        first_row: Row of the first length.

    Raises:
        AddressFault: They leave the allocation.
    """
    slots = operand.shape[1]
    for row in torch.nonzero(lengths > slots).flatten().tolist():
        start = operand.base + (first_row + row) * operand.strides[0]
        bounds.touch_run(
            operand,
            row=first_row + row,
            first_index=0,
            count=int(lengths[row]),
            first_offset=start,
            row_span=(start, start + slots),
        )
