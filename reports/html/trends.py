"""Pages of trends: one chart per number over many runs, to be zoomed with the pointer.

Every chart is an SVG first, so the page reads without scripts, where CI servers forbid them; with
scripts a chart library, inlined, takes its place. Each chart's numbers stand in a table beside it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from markupsafe import Markup

from reports.html.drawing import Box, Drawing, Label, Mark, Rule
from reports.html.page import template
from reports.table import Table
from reports.text import counted, visible

VENDOR = Path(__file__).parents[1] / "vendor" / "uplot"

_WIDTH, _HEIGHT = 900.0, 180.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 16.0, 16.0, 24.0
_COLOUR = "#4c8dc9"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrendPoint:
    """One value of a trend.

    Attributes:
        label: Where it stands, such as a date.
        value: None for a run that has none.
        note: What is worth knowing of it, such as the versions that moved.
    """

    label: str
    value: float | None
    note: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrendLine:
    """One number over many runs, oldest first.

    Attributes:
        steps: Places in ``points`` at which the level changed.
        verdict: What was made of it, such as ``no regression``.
    """

    title: str
    unit: str
    points: tuple[TrendPoint, ...]
    steps: tuple[int, ...] = ()
    verdict: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrendGroup:
    """The trends of one scenario."""

    title: str
    lines: tuple[TrendLine, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chart:
    line: TrendLine
    drawing: Drawing
    table: Table
    data: Markup


def render_trends(title: str, groups: Sequence[TrendGroup], *, summary: str = "") -> str:
    """Return a page of trends as one HTML file.

    Args:
        title: Heading of the page.
        groups: The trends, in the order in which they are to be read.
        summary: One sentence above them.
    """
    library, starter = _scripts()
    return template("trends.html.j2").render(
        title=title,
        summary=summary,
        groups=[(group.title, [_chart(line) for line in group.lines]) for group in groups],
        style=_raw((VENDOR / "uPlot.min.css").read_text(encoding="utf-8")),
        library=_raw(library),
        starter=_raw(starter),
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src {_hash(library)} {_hash(starter)}",
    )


@cache
def _scripts() -> tuple[str, str]:
    """Return the chart library and what starts it, both our own files."""
    library = (VENDOR / "uPlot.iife.min.js").read_text(encoding="utf-8")
    starter = Path(__file__).parents[1] / "templates" / "html" / "trends.js"
    return library, starter.read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = hashlib.sha256(script.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _raw(text: str) -> Markup:
    assert "</s" not in text, "would end its element early"
    return Markup(text)  # noqa: S704 (a file of the project, not foreign text)


def _chart(line: TrendLine) -> _Chart:
    rows = [
        (point.label, "-" if point.value is None else number_text(point.value), point.note or "-")
        for point in reversed(line.points)
    ]
    return _Chart(
        line=line,
        drawing=trend_drawing(line),
        table=Table(
            title=f"{line.title}, newest first",
            header=("run", line.unit or "value", "note"),
            rows=tuple(rows),
        ),
        data=_json(
            {
                "labels": [visible(point.label) for point in line.points],
                "values": [_finite(point.value) for point in line.points],
                "steps": list(line.steps),
                "unit": visible(line.unit),
            }
        ),
    )


def _json(data: object) -> Markup:
    """Return data for a script element: no text in it can end the element."""
    text = json.dumps(data, allow_nan=False)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)  # noqa: S704 (whatever could be markup is escaped)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def number_text(value: float) -> str:
    """Return a number with four digits that mean something.

    >>> number_text(0.123456), number_text(1234.5)
    ('0.1235', '1234')
    """
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"


def trend_drawing(line: TrendLine) -> Drawing:
    """Return a trend as a figure: a dot per run, a line at each step of the level."""
    values = [_finite(point.value) for point in line.points]
    known = [value for value in values if value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 1.0)
    if low == high:
        low, high = low - max(abs(low) * 0.1, 0.5), high + max(abs(high) * 0.1, 0.5)
    marks = [
        Mark(
            x=_x(place, len(values)),
            y=_y(value, low, high),
            kind="dot",
            fill=_COLOUR,
            title=f"{line.points[place].label}: {number_text(value)} {line.unit}".rstrip(),
        )
        for place, value in enumerate(values)
        if value is not None
    ]
    rules = [
        Rule(x1=before.x, y1=before.y, x2=after.x, y2=after.y) for before, after in pairwise(marks)
    ]
    for step in line.steps:
        x = _x(step - 0.5, len(values))
        rules.append(Rule(x1=x, y1=_TOP, x2=x, y2=_HEIGHT - _BOTTOM, dashed=True))
    latest = f"latest {number_text(known[-1])} {line.unit}".rstrip() if known else "no value"
    ends = [
        Label(x=_LEFT - 6, y=_y(high, low, high) + 4, text=number_text(high), anchor="end"),
        Label(x=_LEFT - 6, y=_y(low, low, high) + 4, text=number_text(low), anchor="end"),
    ]
    if line.points:
        first, last = line.points[0].label, line.points[-1].label
        ends.append(Label(x=_LEFT, y=_HEIGHT - 6, text=first[:40]))
        ends.append(Label(x=_WIDTH - _RIGHT, y=_HEIGHT - 6, text=last[:40], anchor="end"))
    changes = f"{counted(len(line.steps), 'step')} of the level" if line.steps else "no step"
    said = [latest, counted(len(known), "run"), changes, line.verdict]
    return Drawing(
        title=line.title,
        says=", ".join(part for part in said if part),
        width=_WIDTH,
        height=_HEIGHT,
        boxes=(
            Box(x=_LEFT, y=_TOP, width=_WIDTH - _LEFT - _RIGHT, height=_HEIGHT - _TOP - _BOTTOM),
        ),
        labels=tuple(ends),
        marks=tuple(marks),
        rules=tuple(rules),
        note="dashed lines are steps of the level" if line.steps else "",
    )


def _x(place: float, number: int) -> float:
    return _LEFT + (place + 0.5) / max(1, number) * (_WIDTH - _LEFT - _RIGHT)


def _y(value: float, low: float, high: float) -> float:
    inner = _HEIGHT - _TOP - _BOTTOM - 16
    return _TOP + 8 + (high - value) / (high - low) * inner
