"""Where a piece of evidence was taken: the five fields that all comparison records share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict


class SiteFields(TypedDict):
    """Keyword arguments of a record in ``harness.record.evidence``."""

    global_rank: int
    cp_rank: int
    microbatch: int
    layer: int
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Rank, microbatch, layer and seed that a comparison belongs to."""

    global_rank: int
    cp_rank: int
    microbatch: int = 0
    layer: int = 0
    seed: int = 0

    def fields(self) -> SiteFields:
        """Return the fields as keyword arguments of an evidence record."""
        return {
            "global_rank": self.global_rank,
            "cp_rank": self.cp_rank,
            "microbatch": self.microbatch,
            "layer": self.layer,
            "seed": self.seed,
        }
