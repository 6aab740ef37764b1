"""Timing evidence: how long the phases of a forward take, over several forwards."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TimingEvidence:
    """One phase of one microbatch's forward on one rank.

    Attributes:
        phase: ``layout``, ``gather``, ``score``, ``select`` or ``attend``.
        on: ``cuda`` or ``cpu``; with modelled kernels times say nothing about kernels.
        kernels: ``hardware``, ``modelled`` or ``torch``.
        repeats: Forwards measured, behind some that were not.
        median_s: Median seconds in the phase, all its visits in one forward added up.
        low_s: Lower quartile.
        high_s: Upper quartile.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    seed: int
    phase: str
    on: str
    kernels: str
    repeats: int
    median_s: float
    low_s: float
    high_s: float
