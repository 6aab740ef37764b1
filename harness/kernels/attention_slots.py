"""Which kv row each slot of attention backward reads, adds to, or leaves alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.kernels.addresses import Bounds, Operand
from harness.kernels.failures import KernelHang
from harness.kernels.recompute_slots import judge_lengths
from harness.kernels.rules import Arch, LongLengths

TILE = 64
"""Slots that are loaded together; a tile that is begun is worked on whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotRules:
    """How a release treats ids and lengths.

    Attributes:
        kernel: Wrapper name, for evidence.
        arch: Architecture.
        masks: Invalid ids and unused slots are ignored; without, unused slots of a tile take part
            with a zero key and ids are used as addresses (``d785``, ``d877``).
        long_lengths: What lengths above the slots do.
        hangs_on_empty: A length of 0 or less hangs (``d433``).
        key_limit: Slot positions from here on lose their dkv (``d298``), None without.
        keys: Rows of kv.
    """

    kernel: str
    arch: Arch
    masks: bool
    long_lengths: LongLengths
    hangs_on_empty: bool
    key_limit: int | None
    keys: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotTable:
    """Slots of some tokens; K is as wide as the widest of them needs.

    Attributes:
        read_rows: int64 (T, K), kv rows that are read.
        reads: bool (T, K), slots that read.
        live: bool (T, K), slots whose P counts; those that do not read have a zero key.
        write_rows: int64 (T, K), kv rows that dkv is added to.
        writes: bool (T, K).
    """

    read_rows: torch.Tensor
    reads: torch.Tensor
    live: torch.Tensor
    write_rows: torch.Tensor
    writes: torch.Tensor


def check_lengths(
    rules: SlotRules, ids: torch.Tensor, lengths: torch.Tensor | None, bounds: Bounds
) -> None:
    """Judge what lengths alone lead to, before anything is computed.

    Args:
        rules: Of the release.
        ids: (T, K) int32, contiguous.
        lengths: int64 (T,), None when the caller gave none.
        bounds: Judge.

    Raises:
        KernelHang: A length of 0 or less, where the release does not end.
        AddressFault: Ids are read outside their allocation.
    """
    if lengths is None:
        return
    empty = torch.nonzero(lengths <= 0).flatten().tolist()
    if empty and rules.hangs_on_empty:
        raise KernelHang(
            rules.kernel,
            f"row {empty[0]} has topk_length {int(lengths[empty[0]])}: its first tile is waited "
            "for and never loaded",
        )
    if empty and rules.arch == "sm90" and not rules.masks:
        operand, row = Operand.of("topk_idxs", ids), empty[0]
        start = operand.base + row * operand.strides[0]
        bounds.touch_run(
            operand,
            row=row,
            first_index=-TILE,
            count=TILE,
            first_offset=start - TILE,
            row_span=(start, start + ids.shape[1]),
        )
        raise KernelHang(
            rules.kernel,
            f"row {row} has topk_length {int(lengths[row])}: ids in front of the row are loaded as "
            "its last tile, and the loop over tiles does not meet its end",
        )
    if rules.long_lengths is not LongLengths.CLAMPED:
        judge_lengths(bounds, Operand.of("topk_idxs", ids), lengths, 0)


def slot_table(
    rules: SlotRules, ids: torch.Tensor, lengths: torch.Tensor | None, part: torch.Tensor
) -> SlotTable:
    """Build the table of some tokens.

    Args:
        rules: Of the release.
        ids: (T, K) int32, contiguous.
        lengths: int64 (T,), None when the caller gave none.
        part: int64 (P,), tokens.
    """
    slots = ids.shape[1]
    own = lengths[part] if lengths is not None else torch.full((part.numel(),), slots)
    if rules.long_lengths is LongLengths.CLAMPED:
        own = own.clamp(max=slots)
    own = own.clamp(min=0).unsqueeze(1)
    begun = -(-own // TILE) * TILE
    width = int((own if rules.masks else begun).max()) if part.numel() else 0
    positions = torch.arange(width)
    rows = _ids(ids, part, width)
    in_length = positions < own
    read_rows = rows
    if rules.long_lengths is LongLengths.SCATTER_READS_ON:
        read_rows = torch.where(positions < slots, rows, -1)
    if rules.masks:
        live = reads = in_length & (read_rows >= 0) & (read_rows < rules.keys)
        writes = live & (rows >= 0) & (rows < rules.keys)
    else:
        has_lengths = lengths is not None
        live = positions < begun
        reads = in_length if has_lengths else in_length & (rows >= 0)
        writes = reads if not has_lengths or rules.arch == "sm90" else reads & (rows >= 0)
    if rules.key_limit is not None:
        writes = writes & (positions < rules.key_limit)
    return SlotTable(read_rows=read_rows, reads=reads, live=live, write_rows=rows, writes=writes)


def _ids(ids: torch.Tensor, part: torch.Tensor, width: int) -> torch.Tensor:
    """Ids of some tokens, int64 (P, width); past the row whatever lies there (judged before)."""
    slots = ids.shape[1]
    if width <= slots:
        return ids[part, :width].to(torch.int64)
    operand = Operand.of("topk_idxs", ids)
    flat = torch.empty(0, dtype=ids.dtype)
    flat.set_(ids.untyped_storage(), 0, (operand.allocation,), (1,))
    starts = operand.base + part.unsqueeze(1) * operand.strides[0]
    # Only slots below a row's length are ever used, and those were judged.
    places = (starts + torch.arange(width)).clamp(max=operand.allocation - 1)
    return flat[places].to(torch.int64)
