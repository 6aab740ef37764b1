"""Vocabulary of the release table: one typed record of rules per operation and architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Arch = Literal["sm90", "sm100"]
ARCHES: tuple[Arch, ...] = ("sm90", "sm100")


class MaskAlignment(StrEnum):
    """Where the causal diagonal of a q x k rectangle starts."""

    BOTTOM_RIGHT = "bottom_right"
    """Last row sees every key: limit of row r is (Sk * ratio - Sq + r + 1) // ratio."""
    TOP_LEFT = "top_left"
    """First row sees its own key: limit of row r is (offset + r + 1) // ratio."""


class SizeRule(StrEnum):
    """How many query rows a BSHD call may have against its keys. Offsets are ignored."""

    NONE = "none"
    WHOLE_BLOCKS = "whole_blocks"
    """Sq <= Sk * ratio."""
    PARTIAL_BLOCK = "partial_block"
    """Sq <= Sk * ratio + ratio - 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardRules:
    """What ``indexer_forward_wrapper`` does on one architecture.

    Attributes:
        heads: Query heads per key head it serves.
        tokens_per_tile: Rows that one tile packs, by heads: the grid is rounded up to them.
        size_rule: Rows against keys, BSHD.
        padded_view: The result is a view of rows of ceil4(Sk) floats when Sk % 4 is not 0.
        strict_error: Exception type of head, dtype-independent shape and dimension errors.
        column_guard: Columns behind max_seqlen_k are not stored under THD.
        gives_lse: ``return_lse`` is served.
        fixed_tuning: Tuning arguments other than the defaults are refused.
        empty_without_launch: Sk = 0 gives the empty result.
    """

    heads: tuple[int, ...]
    tokens_per_tile: Mapping[int, int]
    size_rule: SizeRule
    padded_view: bool
    strict_error: type[Exception]
    column_guard: bool
    gives_lse: bool = False
    fixed_tuning: bool = False
    empty_without_launch: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class TopKRules:
    """What ``indexer_top_k_wrapper`` does; the same on every architecture it runs on.

    Attributes:
        repairs_layout: Strided or misaligned inputs are copied; before, the launch refuses them.
        checks_extents: Zero rows, columns or next_n are refused.
    """

    repairs_layout: bool = False
    checks_extents: bool = False


class ScoreGradient(StrEnum):
    """Which stage turns dense scores into the gradient signal."""

    TORCH = "torch"
    """Plain torch: softmax of the masked scores; signal in ``attn_score``; lse and norm ignored."""
    KERNEL = "kernel"
    """Own kernel on the given lse and norm; signal in ``index_score``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexerBackwardRules:
    """What ``indexer_backward_wrapper`` does on one architecture.

    Attributes:
        global_only: Ids are always global; there is no switch.
        tensor_grad_loss: ``grad_loss`` must be a one-element fp32 tensor.
        overwrites_index_score: ``index_score`` ends up holding the row's gradient sum.
        checks_first: Everything is checked before ``attn_score`` is overwritten.
        rows_on_grid_y: Grid is (B, Sq), so rows are limited; (Sq, B) limits batches.
        small_heads: Head counts below 64 that are served.
        heads_error: How other head counts below 64 are refused.
        positive_width: A width of 0 is refused.
        checks_owner: Ids of another batch are told apart on this architecture.
        second_backend: ``backend="sm100_v2"`` is served.
        deterministic: ``deterministic=True`` is served.
    """

    global_only: bool = False
    tensor_grad_loss: bool = False
    overwrites_index_score: bool = False
    checks_first: bool = False
    rows_on_grid_y: bool = False
    small_heads: tuple[int, ...] = ()
    heads_error: type[Exception] = AssertionError
    positive_width: bool = False
    checks_owner: bool = False
    second_backend: bool = False
    deterministic: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseBackwardRules:
    """What ``dense_indexer_backward_wrapper`` does on one architecture.

    Attributes:
        score_gradient: Stage that makes the signal.
        tensor_grad_loss: ``grad_loss`` must be a one-element fp32 tensor.
        size_rule: Rows against keys.
        zeroes_row: Every masked column of the signal is zeroed, not just the blocks that are read.
        row_pair: Rows that share a tile: the zeroed blocks are those of the pair's longer row.
    """

    score_gradient: ScoreGradient = ScoreGradient.KERNEL
    tensor_grad_loss: bool = False
    size_rule: SizeRule = SizeRule.NONE
    zeroes_row: bool = False
    row_pair: int = 1


class MaskedCells(StrEnum):
    """What dense recompute leaves in cells a row may not see."""

    ZERO = "zero"
    """0, and -inf behind the segment's keys under THD."""
    ZERO_IN_BLOCKS = "zero_in_blocks"
    """0 up to the end of the last 128-column block of the segment; memory as it was behind it."""
    ZERO_IN_TILES = "zero_in_tiles"
    """0 in the 64-column tiles that the row visits, -inf in all others."""
    MINUS_INF = "minus_inf"


@dataclass(frozen=True, kw_only=True, slots=True)
class RecomputeRules:
    """What the four score recompute wrappers do on one architecture.

    Attributes:
        masked: Masked cells of the dense results.
        fills_caller_out: A caller's dense ``out`` is filled before the launch.
        exponent_floor: Dense attention clamps exponents at 2^-126 for head counts other than 64.
        unwritten_slots: Trailing slots past a multiple of 128 hold memory as it was (else 0).
        converts_ids: Wrappers cast ids, lengths and prefix sums to contiguous int32.
        odd_heads: Head counts of sparse attention recompute outside the usual rule.
        repairs_single_row: Dense recompute lays the statistics of a single row out anew.
    """

    masked: MaskedCells
    fills_caller_out: bool = False
    exponent_floor: bool = False
    unwritten_slots: bool = True
    converts_ids: bool = False
    odd_heads: tuple[int, ...] = ()
    repairs_single_row: bool = False


class LongLengths(StrEnum):
    """What attention backward does with a ``topk_length`` above the slots."""

    READ_ON = "read_on"
    """Ids are read past the row, for keys and for dkv."""
    SCATTER_READS_ON = "scatter_reads_on"
    """Key loads see id -1; the dkv stage reads ids past the row."""
    CLAMPED = "clamped"
    """As if it were the number of slots."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionBackwardRules:
    """What ``sparse_attention_backward_wrapper`` does on one architecture.

    Attributes:
        checks_shapes: Companion shapes and the head dimension are checked.
        long_lengths: What the defect ``long_topk_lengths`` looks like.
        scales_first: dS is scaled in fp32 before its one rounding (else rounded twice).
        deterministic_heads: Head counts that ``deterministic=True`` serves.
        aligned_lse: ``lse`` must start at a multiple of 8 bytes.
        own_kernels: (D, heads) with a kernel of their own beside the generic one for 64 heads.
    """

    checks_shapes: bool = False
    long_lengths: LongLengths
    scales_first: bool = True
    deterministic_heads: tuple[int, ...] = ()
    aligned_lse: bool = False
    own_kernels: tuple[tuple[int, int], ...] = ()
