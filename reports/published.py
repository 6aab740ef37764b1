"""Figures that others published for a scenario, read from the scenario that a result carries."""

from __future__ import annotations

from collections.abc import Iterator

from harness.record.codec import DecodeError, from_jsonable
from harness.record.result import ScenarioResult
from harness.scenario.spec import Published


def published(result: ScenarioResult) -> tuple[Published, ...]:
    """Return the published figures; records from before there were any have none."""
    return tuple(_decoded(result.scenario.get("published")))


def _decoded(entries: object) -> Iterator[Published]:
    for data in entries if isinstance(entries, list) else []:
        try:
            yield from_jsonable(Published, data)
        except DecodeError:
            # An entry written by a later version is no reason to lose the report.
            continue


def published_text(entry: Published) -> str:
    """Return one figure with its source, such as ``overlap: 0.02 to 0.25 (https://...)``."""
    return f"{entry.what}: {entry.value} ({entry.link})"
