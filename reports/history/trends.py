"""The trends of a store: every metric of every scenario over nights of one key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
    same = [number for number, head in earlier if head.key == night.key][-(JUDGED - 1) :]
    series = index.series(same)
    return {
        entry.id: tuple(
            judge(metric, [*_values(series, entry.id, metric), value])
            for metric, value in entry.metrics.items()
            if metric in POLICIES
        )
        for entry in night.entries
    }


def _values(
    series: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], scenario: str, metric: str
) -> list[float]:
    return [value for _, value in series.get(scenario, {}).get(metric, ())]
