"""Resolved form of the ranges in which a search draws layout histories. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSpec:
    """Ranges of random histories; None is derived from the scenario's own microbatches.

    Attributes:
        microbatches: Most microbatches of a history; its own number, but at least 3.
        sequences: Most sequences of a pack; the most of its own packs, but at least 6.
        length: Longest sequence in tokens; the longest of its own.
        tokens: Most real tokens of a pack; those of its own largest.
        zero_lengths: Sequences without a token.
        all_empty: Packs in which no sequence has a token.
        padded: Padded lengths beyond what the group needs.
        tail_padding: Rows behind the last sequence.
        cp: Effective CP sizes under Dynamic CP; all divisors of the largest.
        schedule: Orders of forward and backward, where there is a backward.
    """

    microbatches: int | None = None
    sequences: int | None = None
    length: int | None = None
    tokens: int | None = None
    zero_lengths: bool = True
    all_empty: bool = False
    padded: bool = True
    tail_padding: bool = False
    cp: tuple[int, ...] | None = None
    schedule: bool = True
