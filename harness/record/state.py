"""State evidence: what a microbatch left other than it found it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class StateChange:
    """One piece of state before and after a microbatch.

    Attributes:
        name: Such as ``group decoder.layers.0.self_attention.pg_collection.cp``.
        before: Its value, or ``absent``.
        after: Its value, or ``absent``.
    """

    name: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StateEvidence:
    """State around one microbatch on one rank.

    Attributes:
        groups: Process groups that were looked at.
        settings: Fields of the configuration that were looked at.
        dispatch: Module globals of the DSA code that were looked at.
        carriers: Attributes that the build hung on the microbatch's ``PackedSeqParams``.
        live_tensors: Tensors alive after the microbatch, None where they were not counted.
        moved: What changed and should not have.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    seed: int
    groups: int
    settings: int
    dispatch: int
    carriers: tuple[str, ...] = ()
    live_tensors: int | None = None
    moved: tuple[StateChange, ...] = ()
