"""The scoring plan a layout calls for, from layout facts alone, with the reason that decided it.

Sequence count and CP size are independent axes: CP 1 can hold several sequences, CP above 1 can
hold one. The contract is that of Megatron-LM pull request 6206
(https://github.com/NVIDIA/Megatron-LM/pull/6206), for causal attention. What a particular release
does instead is in ``harness.layout.released``.
"""

from __future__ import annotations

import enum
from typing import Literal, NamedTuple, get_args

from harness.layout.errors import LayoutError, LayoutRule, check_cp_size
from harness.layout.pack import Pack

QkvFormat = Literal["thd", "sbhd"]
KeyPositions = Literal["derived", "explicit"]
LossMode = Literal["off", "sparse", "dense"]


class Plan(enum.StrEnum):
    """How indexer scores and top-k are produced for one attention call."""

    PLAIN_CAUSAL = "plain_causal"
    """One fused call over whole sequences; the kernel's own causal mask is all that is needed."""
    PACKED_SINGLE = "packed_single"
    """One packed sequence, scored as a causal front and back segment."""
    PACKED_THD = "packed_thd"
    """Any pack, scored by the THD kernel from ``cu_seqlens`` of queries and keys."""
    UNFUSED_BOUNDS = "unfused_bounds"
    """Scores without a fused kernel, masked by the [start, end) key bounds of each row."""
    DECLINE = "decline"
    """The fused scorers must not be called; the caller's reference path runs."""


class PlanDecision(NamedTuple):
    """A plan and the condition that decided it."""

    plan: Plan
    reason: str


def expected_plan(
    *,
    qkv_format: QkvFormat,
    cp_size: int,
    pack: Pack | None = None,
    key_positions: KeyPositions = "derived",
    loss: LossMode = "off",
) -> PlanDecision:
    """Return the plan that a right build takes for this layout; the same on every rank.

    A pack whose sequences are all empty is ``packed_thd``: the plan follows the number of entries,
    which the host knows, and the single-sequence scorer has no key prefix to score. It owes no pick
    for any row; a build that refuses such a pack is judged as a refusal, not as a wrong path.

    One cell is read differently by states of the pull request: they score one packed sequence at
    ``cp_size`` 1 as a single causal segment, which they count as the single-sequence plan. Here it
    is ``packed_thd``, as for every other pack at ``cp_size`` 1.

    Args:
        qkv_format: ``thd`` (packed, ``pack`` required) or ``sbhd``.
        cp_size: Effective CP size.
        pack: The packed layout; not looked at for ``sbhd``.
        key_positions: ``explicit`` when the caller hands over key positions of its own.
        loss: Indexer loss of this call; ``off`` in evaluation, whatever the configuration says.

    Raises:
        LayoutError: ``cp_size`` below 1 or not the pack's, or ``thd`` without a pack.
    """
    check_plan_facts(qkv_format, cp_size, pack, key_positions, loss)
    if key_positions == "explicit":
        return PlanDecision(
            Plan.DECLINE, "explicit key positions are not expressible as [start, end) key bounds"
        )
    if qkv_format == "sbhd":
        if cp_size == 1:
            return PlanDecision(
                Plan.PLAIN_CAUSAL, "not packed, cp_size 1: the bounds are whole-sequence causal"
            )
        return PlanDecision(
            Plan.UNFUSED_BOUNDS,
            f"not packed, cp_size {cp_size}: no fused scorer takes zigzag rows without packing",
        )
    if loss == "dense":
        return PlanDecision(
            Plan.UNFUSED_BOUNDS,
            "dense indexer loss needs full scores over packed rows, which no fused packed kernel "
            "returns",
        )
    assert pack is not None
    blocker = _single_segment_blocker(pack)
    if blocker is None:
        return PlanDecision(
            Plan.PACKED_SINGLE,
            f"one packed sequence, cp_size {cp_size}, equal query and key boundaries, no tail: "
            "scored as its front and back segment",
        )
    return PlanDecision(Plan.PACKED_THD, blocker)


def _single_segment_blocker(pack: Pack) -> str | None:
    """Return what keeps a pack from the single-sequence scorer, None if nothing does."""
    if pack.all_empty:
        return f"all {pack.num_sequences} sequences are empty: cu_seqlens with no row to score"
    if not pack.single:
        num_empty = pack.q_padded.count(0)
        empties = f" ({num_empty} empty)" if num_empty else ""
        return f"{pack.num_sequences} packed sequences{empties}: scored from cu_seqlens"
    if pack.cp_size == 1:
        return "one packed sequence, cp_size 1: not split into zigzag segments"
    if pack.tail_padding:
        return f"{pack.tail_padding} tail rows behind the sequence belong to neither half of it"
    if not pack.equal_boundaries:
        return f"query boundaries {pack.q_padded} differ from key boundaries {pack.k_padded}"
    if pack.rows_per_rank % 2:
        return f"{pack.rows_per_rank} local rows do not split into two equal halves"
    return None


def check_plan_facts(
    qkv_format: QkvFormat,
    cp_size: int,
    pack: Pack | None,
    key_positions: KeyPositions,
    loss: LossMode,
) -> None:
    """Raise unless the facts a plan is derived from fit together."""
    assert qkv_format in get_args(QkvFormat), qkv_format
    assert key_positions in get_args(KeyPositions), key_positions
    assert loss in get_args(LossMode), loss
    check_cp_size(cp_size)
    if qkv_format == "sbhd":
        return
    if pack is None:
        raise LayoutError(
            "qkv_format thd needs a pack, found none; pass pack=, or use sbhd",
            rule=LayoutRule.PACK_MISSING,
        )
    if pack.cp_size != cp_size:
        raise LayoutError(
            f"cp_size {cp_size} differs from the pack's cp_size {pack.cp_size}; "
            "build the pack for the effective cp_size of the microbatch",
            rule=LayoutRule.CP_SIZE_MISMATCH,
        )
