"""The trends of a store: every metric of every scenario over nights of one key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from reports.history.index import Index
from reports.history.night import Night
from reports.history.policy import POLICIES, Trend, judge

SHOWN = 90
"""Most nights of a trend."""
JUDGED = 60
"""Most nights that a judgement looks at."""


def earlier_nights(index: Index, night: Night, *, most: int = SHOWN) -> list[tuple[int, Night]]:
    """Return the nights before ``night`` of its suite, oldest first, without their entries."""
    found = [
        (number, head)
        for number, head in index.heads()
        if head.key.suite == night.key.suite and head.started_at < night.started_at
    ]
    return found[-most:]


def judged_trends(
    index: Index, night: Night, earlier: Sequence[tuple[int, Night]]
) -> dict[str, tuple[Trend, ...]]:
    """Judge tonight's numbers against nights of the same key, scenario by scenario.

    Nights of another key are left out: their numbers are no measure of tonight's.
    """
    same = [(number, head) for number, head in earlier if head.key == night.key][-(JUDGED - 1) :]
    series = index.series([number for number, _ in same])
    days = {number: head.started_at[:10] for number, head in same}
    return {
        entry.id: tuple(
            _judged(series.get(entry.id, {}).get(metric, ()), days, metric, value, night)
            for metric, value in entry.metrics.items()
            if metric in POLICIES
        )
        for entry in night.entries
    }


def _judged(
    points: Sequence[tuple[int, float]],
    days: Mapping[int, str],
    metric: str,
    value: float,
    night: Night,
) -> Trend:
    trend = judge(metric, [*(earlier for _, earlier in points), value])
    labels = (*(days[number] for number, _ in points), night.started_at[:10])
    return replace(trend, labels=labels)
