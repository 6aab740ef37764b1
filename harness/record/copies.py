"""Copy evidence: a layout table brought to the device directly, and through pinned memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyEvidence:
    """One table at one CP size.

    Attributes:
        table: Such as ``key_reorder``.
        repeats: Copies of each sort that were timed, in turn.
        equal: Whether both arrive bit for bit, None where none was made.
        direct_s: Median seconds of a direct copy, until it is done.
        pinned_s: Median seconds of pinning and then copying, until it is done.
        ratio: Median of the pairs' ratios, direct over pinned.
        ratio_low: Lower quartile of these ratios.
        ratio_high: Upper quartile.
        why_not: Why nothing was measured; empty where it was.
    """

    global_rank: int
    cp_size: int
    table: str
    bytes: int = 0
    repeats: int = 0
    equal: bool | None = None
    direct_s: float = 0.0
    pinned_s: float = 0.0
    ratio: float = 0.0
    ratio_low: float = 0.0
    ratio_high: float = 0.0
    why_not: str = ""
