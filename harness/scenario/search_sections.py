"""Section of the scenario file that says in which ranges a search draws histories."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from harness.scenario import fields as f


class Search(f.Section):
    """Ranges in which ``dsa-harness search`` draws histories; a run does not read them."""

    microbatches: Annotated[int, Field(ge=1, le=64)] | None = None
    """Most microbatches of a history; left out: the scenario's own number, but at least 3."""
    sequences: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Most sequences of a pack; left out: the most of the scenario's packs, but at least 6."""
    length: f.Size | None = None
    """Longest sequence in tokens; left out: the scenario's longest."""
    tokens: f.Size | None = None
    """Most real tokens of a pack; left out: those of the scenario's largest."""
    zero_lengths: bool = True
    """Sequences without a token."""
    all_empty: bool = False
    """Packs in which no sequence has a token."""
    padded: bool = True
    """Padded lengths beyond what the group needs."""
    tail_padding: bool = False
    """Rows behind the last sequence that no sequence owns."""
    cp: Annotated[list[f.GroupSize], Field(min_length=1), AfterValidator(f.unique)] | None = None
    """Effective CP sizes under Dynamic CP; left out: the divisors of the largest."""
    schedule: bool = True
    """Orders of forward and backward, where there is a backward."""
