"""The pages of a history: one for each night, all trends small, and the index of nights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.record.files import safe_name, write_text
from reports.history.night import Night
from reports.history.policy import Label, Trend
from reports.history.store import StoreError
from reports.history.story import Finding, Story
from reports.history.telling import Told
from reports.html.page import template
from reports.html.trends import TrendGroup, TrendLine, TrendPoint, number_text, render_trends
from reports.table import Table, table
from reports.text import counted

PAGES = "pages"
"""Folder inside a store."""
MAX_CHARTS = 60
"""Most zoomable charts of a night; all others are small."""
_WIDTH, _HEIGHT = 160.0, 28.0
_UNITS = {"time_s": "s", "score_s": "s", "layout_s": "s", "peak_rss_mib": "MiB"}


def write_pages(store: Path, told: Told) -> list[Path]:
    """Write the pages of a night and the index of nights.

    Raises:
        StoreError: if the store cannot be written to.
    """
    night = told.story.night
    charts = _charts(told)
    pages = {
        page_name(night): _night_page(told, has_charts=bool(charts)),
        "trends.html": _trends_page(told),
        "index.html": _index_page(told),
    }
    if charts:
        title = f"Trends of {night.name}, {night.started_at[:10]}"
        pages[charts_name(night)] = render_trends(title, charts, summary=told.story.headline)
    paths = []
    for name, text in pages.items():
        path = store / PAGES / name
        try:
            write_text(path, text)
        except OSError as error:
            raise StoreError(f"{path}: cannot be written: {error.strerror}") from error
        paths.append(path)
    return paths


def page_name(night: Night) -> str:
    """Return the file name of a night's page."""
    return f"{safe_name(night.folder)}.html"


def charts_name(night: Night) -> str:
    """Return the file name of a night's zoomable charts."""
    return f"{safe_name(night.folder)}.trends.html"


def _night_page(told: Told, *, has_charts: bool) -> str:
    story = told.story
    night = story.night
    return template("night.html.j2").render(
        story=story,
        night=night,
        moved=_moved(story),
        owners=[(str(owner), _findings(f"Findings for {owner}", found))
                for owner, found in story.by_owner().items()],
        excused=_findings("In quarantine", _excused(story)),
        partial=table("Not judged", ("scenario",), ([n] for n in night.partial), code=(0,)),
        labels=", ".join(f"{number} {label}" for label, number in story.labels.items()),
        charts=charts_name(night) if has_charts else None,
        warnings=told.warnings,
    )  # fmt: skip


def _moved(story: Story) -> Table:
    rows = ((name, old, new) for name, (old, new) in story.moved.items())
    return table("Environment moved", ("what", "before", "tonight"), rows, code=(0,))


def _excused(story: Story) -> tuple[Finding, ...]:
    return tuple(found for found in story.findings if found not in story.acting)


def _findings(title: str, found: tuple[Finding, ...]) -> Table:
    rows = ((str(item.matter), item.scenario, item.text, item.ownership.reason) for item in found)
    header = ("what", "scenario", "found", "why this owner")
    return table(title, header, rows, code=(1,), most=200)


def _charts(told: Told) -> list[TrendGroup]:
    """Return zoomable charts of the trends that somebody has to look at."""
    groups: dict[str, list[TrendLine]] = {}
    shown = 0
    for found in told.story.findings:
        if found.trend is not None and shown < MAX_CHARTS:
            groups.setdefault(found.scenario, []).append(_line(found.trend, found.text))
            shown += 1
    return [TrendGroup(title=name, lines=tuple(lines)) for name, lines in groups.items()]


def _line(trend: Trend, said: str) -> TrendLine:
    labels = trend.labels or tuple(str(place) for place in range(len(trend.values)))
    points = tuple(
        TrendPoint(label=label, value=value)
        for label, value in zip(labels, trend.values, strict=True)
    )
    return TrendLine(
        title=trend.metric,
        unit=_UNITS.get(trend.metric, ""),
        points=points,
        steps=() if trend.step is None else (trend.step.index,),
        verdict=said,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Spark:
    """A small trend.

    Attributes:
        path: SVG path of the values.
        acts: Whether somebody has to look.
    """

    metric: str
    path: str
    latest: str
    least: str
    greatest: str
    label: str
    number: int
    acts: bool


def _trends_page(told: Told) -> str:
    """All trends of a night, small: those that need the reader first."""
    rows = [
        (name, [spark(trend) for trend in trends]) for name, trends in told.trends.items() if trends
    ]
    rows.sort(key=lambda row: not any(item.acts for item in row[1]))
    return template("night_trends.html.j2").render(
        night=told.story.night, rows=rows, width=_WIDTH, height=_HEIGHT
    )


def spark(trend: Trend) -> Spark:
    """Return a trend as a small line."""
    low, high = min(trend.values), max(trend.values)
    # A flat line lies in the middle; a change of a thousandth of the value is flat to the eye.
    span = max(high - low, abs(high) * 1e-3, 1e-12)
    step = _WIDTH / max(1, len(trend.values) - 1)
    middle = (high + low) / 2
    points = (
        f"{place * step:.0f} {_HEIGHT / 2 - (value - middle) / span * (_HEIGHT - 6):.1f}"
        for place, value in enumerate(trend.values)
    )
    return Spark(
        metric=trend.metric,
        path="M" + "L".join(points),
        latest=number_text(trend.values[-1]),
        least=number_text(low),
        greatest=number_text(high),
        label=str(trend.label if trend.step is None else f"{trend.label}, step"),
        number=len(trend.values),
        acts=trend.acts or trend.label is Label.SUSPICIOUS,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One night in the index."""

    night: Night
    page: str | None
    state: str
    moved: str


def _index_page(told: Told) -> str:
    rows = list(_rows(told))
    return template("nights.html.j2").render(
        rows=rows, headline=told.story.headline, latest=page_name(told.story.night)
    )


def _rows(told: Told) -> Iterator[Row]:
    """Return nights, newest first, each with what moved since the one before."""
    nights = [*told.nights, told.story.night]
    for place in range(len(nights) - 1, -1, -1):
        night = nights[place]
        before = nights[place - 1] if place else None
        moved = {} if before is None else night.key.moved(before.key)
        yield Row(
            night=night,
            page=page_name(night),
            state=_state(night),
            moved=", ".join(f"{name} {old} -> {new}" for name, (old, new) in moved.items()),
        )


def _state(night: Night) -> str:
    if night.partial:
        return f"partial: {counted(len(night.partial), 'scenario')} not judged"
    return "good" if night.good else f"exit code {night.exit_code}"
