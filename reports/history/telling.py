"""From a store to the story of one of its nights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from reports.history.index import Index
from reports.history.night import Night
from reports.history.policy import Trend
from reports.history.quarantine import Quarantined
from reports.history.story import Story, last_good, tell
from reports.history.trends import earlier_nights, judged_trends


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """A story with what the reader must know of the store.

    Attributes:
        nights: Heads of the earlier nights of the suite, oldest first.
        trends: Scenario to its judged trends.
    """

    story: Story
    trends: dict[str, tuple[Trend, ...]]
    nights: tuple[Night, ...]
    warnings: tuple[str, ...]


def tell_night(
    store: Path,
    night: Night,
    *,
    quarantine: Iterable[Quarantined] = (),
    today: date | None = None,
    index_path: Path | None = None,
) -> Told:
    """Tell a night against the nights before it in a store.

    Raises:
        StoreError: if the store cannot be read.
    """
    with Index(store, index_path) as index:
        earlier = earlier_nights(index, night)
        heads = [head for _, head in earlier]
        reference = last_good(heads, night)
        if reference is not None:
            number = next(number for number, head in earlier if head is reference)
            reference = index.with_entries(number, reference)
        trends = judged_trends(index, night, earlier)
        story = tell(
            night,
            reference,
            trends,
            quarantine=quarantine,
            today=today,
        )
        return Told(story=story, trends=trends, nights=tuple(heads), warnings=tuple(index.warnings))
