"""Trends read without scripts, and their scripts are the ones that the page's policy names."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest
from sample_parts import HOSTILE
from test_reports_html import Page
from trend_samples import BARE, FLAT, GROUPS, STEP

from reports.html.trends import VENDOR, TrendLine, TrendPoint, render_trends, trend_drawing
from reports.text import visible

PAGE = render_trends("Trends", GROUPS, summary="20 nights")


def test_a_dot_for_each_value_and_a_line_at_the_step() -> None:
    drawing = trend_drawing(STEP)
    assert len(drawing.marks) == 20
    dashed = [rule for rule in drawing.rules if rule.dashed]
    assert len(dashed) == 1
    assert drawing.marks[11].x < dashed[0].x1 < drawing.marks[12].x
    assert drawing.marks[12].y < drawing.marks[11].y, "more is further up"
    assert drawing.says == "latest 2.01 s, 20 runs, 1 step of the level, regression"
    assert drawing.marks[0].title == "2026-05-01: 1 s"


def test_gaps_flat_lines_and_nothing_at_all() -> None:
    assert len(trend_drawing(FLAT).marks) == 3
    assert len({mark.y for mark in trend_drawing(FLAT).marks}) == 1
    assert trend_drawing(BARE).says == "no value, 0 runs, no step"
    assert trend_drawing(TrendLine(title="x", unit="", points=())).marks == ()
    one = TrendLine(title="x", unit="", points=(TrendPoint(label="a", value=0.0),))
    (mark,) = trend_drawing(one).marks
    assert 0 < mark.y < 180


def test_markup_is_whole_and_foreign_text_stays_text() -> None:
    page = Page(PAGE.replace("</script>", "</script>"))
    assert page.count("script") == len(GROUPS[0].lines) + 1 + 2
    assert visible(HOSTILE) in page.text
    assert "There are no runs to compare yet." in Page(render_trends("Trends", ())).text
    for target in page.values("href"):
        assert target.startswith(("#", "data:"))
    assert page.values("src") == []


def test_data_of_a_chart_is_what_was_given() -> None:
    found = re.findall(r'<script type="application/json">(.*?)</script>', PAGE)
    data = [json.loads(text) for text in found]
    assert data[0]["values"] == [point.value for point in STEP.points]
    assert data[0]["steps"] == [12]
    assert data[1]["values"] == [1.0, None, 1.0, None, 1.0]
    assert data[3]["labels"] == [visible(f"</script>{HOSTILE}")]


def test_the_policy_names_the_scripts_and_no_others() -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', PAGE)
    assert policy is not None
    named = set(re.findall(r"sha256-([A-Za-z0-9+/=]+)", policy[1].replace("&#39;", "'")))
    scripts = re.findall(r"<script>(.*?)</script>", PAGE, flags=re.DOTALL)
    digests = {base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts}
    assert len(scripts) == 2
    assert digests == named
    assert "default-src &#39;none&#39;" in policy[1]


@pytest.mark.parametrize("name", ["LICENSE", "README.md", "uPlot.iife.min.js", "uPlot.min.css"])
def test_the_library_comes_with_its_licence(name: str) -> None:
    assert (VENDOR / name).is_file()
    assert "MIT License" in (VENDOR / "LICENSE").read_text(encoding="utf-8")
    assert "v1.6.32" in (VENDOR / "uPlot.iife.min.js").read_text(encoding="utf-8")[:80]
