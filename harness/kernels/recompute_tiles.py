"""Which SM100 kernel a sparse recompute call gets, and what its slot arithmetic makes of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.kernels.failures import CompileFailure, KernelHang
from harness.kernels.problem import require
from harness.kernels.recompute_heads import check_repetition, check_sm100_columns
from harness.kernels.rules import RecomputeRules

_ACCUMULATOR_COLUMNS = 512
"""Columns of the tensor memory that holds products; each slot takes as many as there are heads."""
_INDEXER_BLOCK = 128
_PLAIN_128 = ((512, 64), (576, 64), (512, 128), (576, 128))
"""(D, heads) whose plain attention kernel works on blocks of 128 slots."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tile:
    """How a kernel walks over the slots.

    Attributes:
        block: Slots per block.
        split: Depth of one step, 0 for the whole head dimension.
        compact: The kernel takes lengths.
    """

    block: int
    split: int
    compact: bool


def attention_tile(
    rules: RecomputeRules, *, depth: int, heads: int, slots: int, has_length: bool
) -> Tile:
    """Choose between the compact and the plain attention kernel, as the dispatcher does.

    A call with lengths gets the plain kernel, and loses them, where both have the same tile.
    """
    plain = _plain_tile(rules, depth, heads, slots)
    if not has_length:
        return Tile(block=plain[0], split=plain[1], compact=False)
    compact = _compact_tile(rules, depth, heads)
    return Tile(block=compact[0], split=compact[1], compact=compact != plain)


def _plain_tile(rules: RecomputeRules, depth: int, heads: int, slots: int) -> tuple[int, int]:
    if _wide_odd(rules, depth, heads):
        return (128, 192)
    if (depth, heads) not in _PLAIN_128:
        return (64, 0)
    if depth == 576:
        return (128, 192)
    return (128, 128 if heads == 128 and slots <= 512 else 256)


def _compact_tile(rules: RecomputeRules, depth: int, heads: int) -> tuple[int, int]:
    if _wide_odd(rules, depth, heads):
        return (128, 192)
    if (depth, heads) == (512, 128):
        return (128, 128)
    return (64, 192 if (depth, heads) == (576, 128) else 0)


def _wide_odd(rules: RecomputeRules, depth: int, heads: int) -> bool:
    return depth == 576 and heads in rules.odd_heads


def indexer_tile(has_length: bool) -> Tile:
    """Return the one tile of the indexer kernel."""
    return Tile(block=_INDEXER_BLOCK, split=0, compact=has_length)


def check_tile(
    name: str, tile: Tile, *, depth: int, heads: int, slots: int, defects: frozenset[str]
) -> None:
    """Refuse what cannot be compiled, and stop at what would never end.

    Raises:
        AssertionError: Slots that are no multiple of the block, or a depth that is none of 64.
        ValueError: Heads that no load of products takes (blocks of 64 slots).
        CompileFailure: Heads that the matrix unit does not take, or lengths with ``d317``.
        KernelHang: With ``slot_arithmetic``, a number of slots that is no power of two.
    """
    require(
        slots % tile.block == 0,
        AssertionError,
        f"{slots} slots; the kernel asserts a multiple of {tile.block}",
    )
    require(depth % 64 == 0, AssertionError, f"D is {depth}; the kernel asserts a multiple of 64")
    key = (depth, heads, slots, tile.block, tile.split, tile.compact)
    check_sm100_columns(name, key, heads)
    if tile.block == 64:
        check_repetition(heads // 2)
    if tile.compact and "d317" in defects:
        raise CompileFailure(name, key, "tensor-memory load under the run-time guard of lengths")
    if "slot_arithmetic" in defects:
        count = accumulator_slots(tile, heads, slots)
        if count & (count - 1):
            raise KernelHang(
                name,
                f"{slots // tile.block} blocks share {count} accumulators, and slot numbers are "
                "masked as if that were a power of two: one of them is never filled",
            )


def accumulator_slots(tile: Tile, heads: int, slots: int) -> int:
    """Accumulators that the blocks of a row share."""
    return max(min(slots // tile.block, _ACCUMULATOR_COLUMNS // heads), 1)


def unfinished_blocks(tile: Tile, heads: int, slots: int) -> torch.Tensor:
    """Mark the blocks whose products are read before they are done: bool (blocks,).

    Blocks are walked from the last to the first. One phase bit serves all accumulators and flips at
    accumulator 0, so those that the first, partial round skipped are one phase behind for ever.
    """
    blocks = slots // tile.block
    count = accumulator_slots(tile, heads, slots)
    partial = blocks % count
    if blocks <= count or partial == 0:
        return torch.zeros(blocks, dtype=torch.bool)
    return torch.arange(blocks) % count >= partial
