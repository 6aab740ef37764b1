"""Trends for pages: a step, a flat one with gaps, one without any number, hostile text."""

from __future__ import annotations

from sample_parts import HOSTILE

from reports.html.trends import TrendGroup, TrendLine, TrendPoint


def points(values: list[float | None]) -> tuple[TrendPoint, ...]:
    return tuple(
        TrendPoint(label=f"2026-05-{n + 1:02d}", value=value) for n, value in enumerate(values)
    )


STEP = TrendLine(
    title="time",
    unit="s",
    points=points([1.0 + 0.01 * (n % 3) + (n >= 12) for n in range(20)]),
    steps=(12,),
    verdict="regression",
)
FLAT = TrendLine(title="overlap", unit="", points=points([1.0, None, 1.0, float("nan"), 1.0]))
BARE = TrendLine(title="memory", unit="MiB", points=points([None, None]))
ODD = TrendLine(
    title=HOSTILE,
    unit=HOSTILE,
    points=(TrendPoint(label=f"</script>{HOSTILE}", value=1.0, note=HOSTILE),),
    verdict=HOSTILE,
)
GROUPS = (
    TrendGroup(title="causal/zigzag[cp4]", lines=(STEP, FLAT, BARE)),
    TrendGroup(title=HOSTILE, lines=(ODD,)),
    TrendGroup(title="empty", lines=()),
)
