"""Sections of the scenario file for a single kernel call, and for a call broken on purpose."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from harness.scenario import fields as f
from harness.scenario.names import (
    HOOK_SIGNATURES,
    KERNEL_WRAPPERS,
    PERTURBATIONS,
    THIRD_PARTY_HOOKS,
)

_Id = Annotated[int, Field(ge=-(2**31), le=f.INT32_MAX)]


class SlotEdit(f.Section):
    """One entry of a call's arguments that is set by hand: a slot's id, or a row's length."""

    batch: f.Rank = 0
    """Entry of the batch."""
    row: f.Rank = 0
    """Query row of that entry."""
    slot: f.Rank | None = None
    """Place in the row's table of ids; goes with ``id``."""
    id: _Id | None = None
    """What the slot holds, key or not."""
    length: _Id | None = None
    """The row's ``topk_length``, in place of ``slot`` and ``id``."""


class KernelCall(f.Section):
    """Level ``kernel``: one wrapper called on its own, against the independent reference."""

    wrapper: Annotated[str, f.OneOf("kernel wrapper", tuple(KERNEL_WRAPPERS))] | None = None
    """Wrapper without its suffix ``_wrapper``; needs level ``kernel``."""
    keys: f.Size = 64
    """Keys of each entry of the batch."""
    slots: f.Size | None = None
    """Width of the table of ids; ``dsa_indexer_topk`` when left out."""
    selected: f.Length | None = None
    """Keys that each row selects; as many as there are, or as fit, when left out."""
    placement: Literal["front", "back"] = "front"
    """Whether the selected keys stand in the first or the last slots of a row."""
    empty_slots: Literal["minus_one", "zero"] = "minus_one"
    """The other slots hold -1, or key 0 of zero weight."""
    lengths: Literal["none", "selected", "slots"] = "none"
    """``topk_length``: left out, the number of selected keys, or the width of the table."""
    ids: Literal["default", "local", "global"] = "default"
    """What ids are said to mean, where the release lets one say so."""
    d_index_k: Literal["fresh", "zeroed", "filled"] = "fresh"
    """``indexer_backward``: whether the caller gives the keys' fp32 gradient, and what it holds."""
    scores: Literal[
        "normal",
        "constant",
        "ascending",
        "descending",
        "plateau",
        "underflow",
        "few_finite",
        "nan",
        "infinite",
    ] = "normal"
    """``indexer_top_k``: what it ranks."""
    above: f.Length = 0
    """Keys above the ``plateau``, or keys with a score under ``few_finite``."""
    deterministic: bool = False
    """``indexer_top_k``: asks for the lower of equal keys where the release can, and calls twice:
    both have to return the same slots."""
    position: f.Length = 0
    """Place of the first row in its sequence, for wrappers that mask causally."""
    offsets: Literal["none", "given"] = "none"
    """Whether that place is handed over as ``q_causal_offsets``."""
    edits: list[SlotEdit] = Field(default=[])
    """Entries set by hand."""


class ThirdPartyHook(f.Section):
    """A backend hook of another party that stands before the backend's own."""

    hook: Annotated[str, f.OneOf("backend hook", tuple(THIRD_PARTY_HOOKS))] | None = None
    """Which hook; none when left out."""
    signature: Annotated[str, f.OneOf("hook signature", tuple(HOOK_SIGNATURES))] = "exact"
    """What the dispatcher can learn of it."""


class Perturb(f.Section):
    """One fact of the production call that is broken on purpose."""

    fact: Annotated[str, f.OneOf("perturbation", tuple(PERTURBATIONS))] | None = None
    """What is broken; nothing when left out."""
    ranks: Annotated[
        Annotated[Literal["all"], f.WORD]
        | Annotated[list[f.Rank], Field(min_length=1), AfterValidator(f.unique), f.LIST],
        f.WORD_OR_LIST,
    ] = "all"
    """Context-parallel ranks whose call is broken."""
