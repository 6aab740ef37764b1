"""Resolved form of a single kernel call, and of a call whose facts are broken on purpose.

Standard library only, like ``harness.scenario.spec``, which holds the rest of a scenario.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

KernelWrapper = Literal[
    "indexer_backward",
    "sparse_attention_backward",
    "sparse_attn_score_recompute",
    "indexer_forward",
    "indexer_top_k",
    "indexer_forward_top_k",
    "dense_attn_score_recompute",
]
Placement = Literal["front", "back"]
EmptySlots = Literal["minus_one", "zero"]
Lengths = Literal["none", "selected", "slots"]
IdMeaning = Literal["default", "local", "global"]
Buffer = Literal["fresh", "zeroed", "filled"]
HookName = Literal["run_fused_dsa_attention", "run_fused_qk_topk", "run_fused_qk_topk_with_loss"]
HookSignature = Literal["exact", "extended", "var_keyword", "positional_only", "opaque", "replaced"]
CallScores = Literal[
    "normal",
    "constant",
    "ascending",
    "descending",
    "plateau",
    "underflow",
    "few_finite",
    "nan",
    "infinite",
]
Offsets = Literal["none", "given"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotEdit:
    """One entry of a call's arguments that is set by hand.

    Attributes:
        batch: Entry of the batch.
        row: Query row of that entry.
        slot: Place in the row's table of ids, None for an edit of the row's length.
        id: What the slot holds.
        length: The row's ``topk_length``, None for an edit of a slot.
    """

    batch: int = 0
    row: int = 0
    slot: int | None = None
    id: int | None = None
    length: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelCallSpec:
    """Level ``kernel``: one wrapper called on its own; the microbatch gives batch and rows.

    Attributes:
        wrapper: Which, without its suffix ``_wrapper``; None at every other level.
        keys: Keys of each entry of the batch.
        slots: Width of the table of ids, None for ``dsa_indexer_topk``.
        selected: Keys that each row selects, None for as many as there are, or as fit.
        placement: Whether the selected keys stand in the first or the last slots of a row.
        empty_slots: What the other slots hold: -1, or key 0 of zero weight.
        lengths: ``topk_length``: left out, the number of selected keys, or the width of the table.
        ids: Whether ids are said to be local or global, or left to the release's default.
        d_index_k: Whether the caller gives the fp32 gradient of the keys, and what is in it.
        scores: What ``indexer_top_k`` is given to rank.
        above: Keys above the plateau of ``scores: plateau``, or finite ones of ``few_finite``.
        deterministic: Asks ``indexer_top_k`` for the lower key among equal ones, where the release
            can, calls it twice and holds the two against each other.
        position: Place of the first row in its sequence, for wrappers that mask causally.
        offsets: Whether that place is handed over as ``q_causal_offsets``.
        edits: Entries set by hand.
    """

    wrapper: KernelWrapper | None = None
    keys: int = 64
    slots: int | None = None
    selected: int | None = None
    placement: Placement = "front"
    empty_slots: EmptySlots = "minus_one"
    lengths: Lengths = "none"
    ids: IdMeaning = "default"
    d_index_k: Buffer = "fresh"
    scores: CallScores = "normal"
    above: int = 0
    deterministic: bool = False
    position: int = 0
    offsets: Offsets = "none"
    edits: tuple[SlotEdit, ...] = ()

    def width(self, topk: int) -> int:
        """Width of the table of ids."""
        return topk if self.slots is None else self.slots

    def count(self, topk: int) -> int:
        """Keys that each row selects."""
        return min(self.width(topk), self.keys) if self.selected is None else self.selected


@dataclass(frozen=True, kw_only=True, slots=True)
class ThirdPartyHookSpec:
    """A backend hook of another party that stands before the backend's own.

    Attributes:
        hook: Which one, None for none.
        signature: Name in ``harness.scenario.names.HOOK_SIGNATURES``.
    """

    hook: HookName | None = None
    signature: HookSignature = "exact"


@dataclass(frozen=True, kw_only=True, slots=True)
class PerturbSpec:
    """One fact of the production call that is broken on purpose.

    Attributes:
        fact: Name in ``harness.scenario.names.PERTURBATIONS``, None for a call left alone.
        ranks: Context-parallel ranks whose call is broken.
    """

    fact: str | None = None
    ranks: Literal["all"] | tuple[int, ...] = "all"
