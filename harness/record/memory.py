"""Memory evidence: what a rank held after each microbatch, so that growth shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

FIGURES = ("live_bytes", "resident_bytes", "device_bytes")
"""Figures in bytes that are held against a bound."""

_NOISE = {"resident_bytes": 16 * 2**20}
"""Rise between thirds up to which a figure is that of an allocator which keeps pages at will."""

_LEAST = 6
"""Microbatches below which nothing is said of growth: two thirds of them are compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEvidence:
    """What one rank held when a microbatch was over and its garbage collected.

    Attributes:
        forward: Number of the forward on this rank, from 1.
        live_tensors: Tensors that Python objects hold and that are younger than the first look.
        live_bytes: Bytes of their distinct storages.
        objects: Objects that the garbage collector follows, likewise.
        resident_bytes: Resident set of the process.
        device_bytes: Bytes that torch's allocator holds on the device, None without a GPU.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    seed: int
    forward: int
    live_tensors: int
    live_bytes: int
    objects: int
    resident_bytes: int
    device_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """Growth of one figure on one rank.

    Attributes:
        figure: One of ``FIGURES``.
        per_microbatch: Bytes for each microbatch, between the medians of the second and the last
            third of the microbatches: the first third fills caches. 0 unless all of the last third
            lies above all of the second.
        since: Microbatch from which on the figure stays above what it was in the second third.
    """

    global_rank: int
    cp_rank: int
    figure: str
    per_microbatch: float
    since: int


def growth_of(records: Sequence[MemoryEvidence]) -> tuple[Growth, ...]:
    """Tell how the figures of one rank grow over its microbatches.

    Args:
        records: Of one rank, in the order in which they were taken.

    Returns:
        Nothing for fewer than six microbatches; figures that were not taken are left out.
    """
    if len(records) < _LEAST:
        return ()
    third = len(records) // 3
    found = []
    for figure in FIGURES:
        values = [getattr(record, figure) for record in records]
        if any(value is None for value in values):
            continue
        second, last = values[third : 2 * third], values[-third:]
        high = max(second)
        step = (median(last) - median(second)) / (len(values) - third - third)
        rise = median(last) - median(second)
        if min(last) <= high or rise <= _NOISE.get(figure, 0):
            # It goes up and down, as a resident set does, and has not left where it was.
            step = 0.0
        since = len(values) - 1
        while since > third and values[since - 1] > high:
            since -= 1
        found.append(
            Growth(
                global_rank=records[0].global_rank,
                cp_rank=records[0].cp_rank,
                figure=figure,
                per_microbatch=step,
                since=records[since].microbatch,
            )
        )
    return tuple(found)
