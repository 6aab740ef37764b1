"""The page in a real browser: looks, console, network, keyboard, and an accessibility checker."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from page_records import dynamic_cp, many_ranks, stopped
from sample_records import (
    ALL,
    crash,
    hang,
    passing,
    released_defect,
    write_run,
)
from trend_samples import GROUPS

from harness.record.result import ScenarioResult
from reports.html.blocks import anchor_of
from reports.html.trends import render_trends
from reports.render import HTML_FILE, write_all

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
sync_api = pytest.importorskip(
    "playwright.sync_api", reason="needs playwright: pip install -e '.[browser]'"
)
axe = pytest.importorskip(
    "axe_playwright_python.sync_playwright",
    reason="needs axe-playwright-python: pip install -e '.[browser]'",
)
pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="needs Debian's chromium: apt-get install chromium"
    ),
]

RUNS: dict[str, Callable[[], list[ScenarioResult]]] = {
    "passing": lambda: [passing()],
    "released-defect": lambda: [released_defect(), passing()],
    "crash": lambda: [crash(), passing()],
    "hang": lambda: [hang(), stopped()],
    "dynamic-cp": lambda: [dynamic_cp()],
    "many-ranks": lambda: [many_ranks()],
    "everything": lambda: [maker() for maker in ALL],
    "empty": list,
}
ALL_RULES = {"resultTypes": ["violations"]}
CONTRAST = {"resultTypes": ["violations"], "runOnly": ["color-contrast"]}
DESKTOP, NARROW = (1280, 800), (390, 800)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name, make in RUNS.items():
        run = write_run(tmp_path_factory.mktemp("runs") / name, make())
        write_all(run)
        found[name] = run / HTML_FILE
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # Root may not use Chromium's sandbox; the pages are our own and have no script.
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Visit:
    """A page that is open, with whatever it said or asked for."""

    def __init__(self, browser: Any, size: tuple[int, int] = DESKTOP, **settings: Any) -> None:
        width, height = size
        self.context = browser.new_context(viewport={"width": width, "height": height}, **settings)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, path: Path, fragment: str = "") -> None:
        self.page.goto(path.as_uri() + fragment)

    def fits(self, width: int) -> bool:
        """Whether nothing sticks out, once what follows a change of size is done."""
        for _ in range(100):
            if self.page.evaluate("document.documentElement.scrollWidth") <= width:
                return True
            self.page.wait_for_timeout(50)
        return False

    def open_all(self) -> None:
        self.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


@pytest.mark.parametrize("name", RUNS)
def test_pages_are_silent_fit_and_accessible(
    browser: Any, pages: dict[str, Path], name: str
) -> None:
    """One visit for all, since a visit costs more than what it checks."""
    with Visit(browser) as visit:
        visit.open(pages[name])
        visit.open_all()
        for width, height in (DESKTOP, NARROW):
            visit.page.set_viewport_size({"width": width, "height": height})
            scrolled = visit.page.evaluate("document.documentElement.scrollWidth")
            assert scrolled == width, "something sticks out of the page"
        # The colours of all pages are those of one style sheet, which has one set for each scheme.
        for scheme, options in (("light", ALL_RULES), ("dark", CONTRAST)):
            visit.page.emulate_media(color_scheme=scheme)
            found = axe.Axe().run(visit.page, options=options)
            assert found.violations_count == 0, found.generate_report()
        assert visit.said == []
        asked = [url for url in visit.asked if not url.startswith("data:")]
        assert asked == [pages[name].as_uri()]
        assert visit.page.evaluate("document.fonts.size") == 0


def test_the_checker_itself_can_fail(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    text = pages["passing"].read_text(encoding="utf-8")
    bad = tmp_path / "bad.html"
    bad.write_text(text.replace(' lang="en"', "").replace("--quiet: #4b5563", "--quiet: #c9ccd1"))
    with Visit(browser) as visit:
        visit.open(bad)
        found = axe.Axe().run(visit.page)
        ids = {item["id"] for item in found.response["violations"]}
        assert {"html-has-lang", "color-contrast"} <= ids
        found = axe.Axe().run(visit.page, options=CONTRAST)
        assert {item["id"] for item in found.response["violations"]} == {"color-contrast"}


def test_dark_and_light_differ_and_both_are_readable(browser: Any, pages: dict[str, Path]) -> None:
    papers = []
    for scheme in ("light", "dark"):
        with Visit(browser, color_scheme=scheme) as visit:
            visit.open(pages["crash"])
            papers.append(visit.page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert papers == ["rgb(255, 255, 255)", "rgb(20, 23, 26)"]


def test_the_page_reads_without_scripts(browser: Any, pages: dict[str, Path]) -> None:
    with Visit(browser, java_script_enabled=False) as visit:
        visit.open(pages["crash"])
        first = visit.page.locator("ol.actions li").first
        assert "ended by signal SIGSEGV" in first.inner_text()
        assert visit.page.locator("details[open] svg[role=img]").first.is_visible()


def test_keys_reach_and_open_everything(browser: Any, pages: dict[str, Path]) -> None:
    with Visit(browser) as visit:
        visit.open(pages["released-defect"])
        page = visit.page
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        summary = page.locator("section details summary", has_text="causal/zigzag").first
        for _ in range(40):
            page.keyboard.press("Tab")
            if summary.evaluate("node => node === document.activeElement"):
                break
        details = summary.locator("xpath=..")
        assert details.get_attribute("open") is None
        page.keyboard.press("Enter")
        assert details.get_attribute("open") is not None
        page.keyboard.press("Tab")
        inside = "node => node.contains(document.activeElement)"
        assert details.evaluate(inside)


def test_a_link_opens_the_scenario_it_leads_to(browser: Any, pages: dict[str, Path]) -> None:
    target = released_defect().id
    with Visit(browser) as visit:
        visit.open(pages["released-defect"], f"#{anchor_of(target)}")
        inside = visit.page.locator(f"[id='{anchor_of(target)}']")
        assert inside.is_visible()
        assert visit.page.evaluate("window.scrollY") > 0


def test_trends_become_charts_that_can_be_zoomed(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "trends.html"
    file.write_text(render_trends("Trends", GROUPS, summary="20 nights"), encoding="utf-8")
    with Visit(browser) as visit:
        visit.open(file)
        page = visit.page
        assert page.locator("canvas").count() == 3, "one of the four has no value to draw"
        assert not page.locator("svg[role=img]").first.is_visible()
        over = page.locator(".u-over").first
        place = over.bounding_box()
        middle = place["y"] + place["height"] / 2
        page.mouse.move(place["x"] + place["width"] * 0.6, middle)
        assert re.match(r"2026-05-1\d: [12]", page.locator(".said").first.inner_text())
        page.mouse.down()
        page.mouse.move(place["x"] + place["width"] * 0.8, middle, steps=4)
        page.mouse.up()
        visit.open_all()
        for width, height in (DESKTOP, NARROW):
            page.set_viewport_size({"width": width, "height": height})
            assert visit.fits(width)
        found = axe.Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert visit.said == []
        assert [url for url in visit.asked if not url.startswith("data:")] == [file.as_uri()]
    with Visit(browser, java_script_enabled=False) as visit:
        visit.open(file)
        assert visit.page.locator("svg[role=img]").first.is_visible()


def test_hostile_text_runs_nowhere(browser: Any, pages: dict[str, Path]) -> None:
    with Visit(browser) as visit:
        raised: list[str] = []
        visit.page.on("dialog", lambda dialog: raised.append(dialog.message))
        visit.open(pages["everything"])
        visit.open_all()
        assert raised == []
        assert visit.page.locator("script").count() == 0
        assert "<script>alert(1)</script>" in visit.page.locator("main").inner_text()


def test_figures_are_drawn_and_their_text_stays_inside(
    browser: Any, pages: dict[str, Path]
) -> None:
    with Visit(browser) as visit:
        for name in ("dynamic-cp", "many-ranks", "released-defect"):
            visit.open(pages[name])
            visit.open_all()
            outside = visit.page.evaluate(
                """() => [...document.querySelectorAll('svg[role=img] text')].filter(text => {
                    const t = text.getBoundingClientRect();
                    const s = text.closest('svg').getBoundingClientRect();
                    return t.left < s.left - 1 || t.right > s.right + 1
                        || t.top < s.top - 2 || t.bottom > s.bottom + 2;
                }).map(text => text.textContent)"""
            )
            assert outside == [], name
            wide = visit.page.evaluate(
                """() => [...document.querySelectorAll('rect + text[pointer-events]')].filter(
                    text => text.getBoundingClientRect().width >
                        text.previousElementSibling.getBoundingClientRect().width + 1
                ).map(text => text.textContent)"""
            )
            assert wide == [], name
            assert visit.page.locator("svg[role=img]").count() >= 3
