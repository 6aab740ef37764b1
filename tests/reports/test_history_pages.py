"""The nightly pages: three planted stories, hostile text, and the index of nights."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from history_samples import defect, entry, key, night
from sample_parts import HOSTILE

from harness.record.verdict import Outcome
from reports.history.night import Night
from reports.history.pages import PAGES, page_name, write_pages
from reports.history.store import append
from reports.history.telling import tell_night


class Text(HTMLParser):
    """The visible text of a page and its links; refuses scripts but the page's own."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self.links: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.hidden += tag in ("style", "script")
        self.links += [value or "" for name, value in attrs if tag == "a" and name == "href"]

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("style", "script")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.text.append(data)


def read(path: Path) -> Text:
    page = Text()
    page.feed(path.read_text())
    return page


def tell(store: Path, *nights: Night) -> list[Path]:
    """Append nights and write the pages of the last one."""
    for one in nights:
        append(store, one)
    return write_pages(store, tell_night(store, nights[-1], index_path=store / "index.sqlite"))


def test_nothing_happened_is_one_line_of_findings(tmp_path: Path) -> None:
    paths = tell(tmp_path, night(0, entry()), night(1, entry()))
    text = " ".join(read(paths[0]).text)
    assert "nothing happened since 2026-01-01: 1 scenario" in text
    assert "Likely owner" not in text
    assert "Environment moved" not in text


def test_a_release_moved_and_one_defect_appeared(tmp_path: Path) -> None:
    moved = night(1, defect("a", Outcome.UNEXPECTED), key=key(cudnn_frontend="1.32.0"), exit_code=1)
    paths = tell(tmp_path, night(0, entry("a")), moved)
    text = " ".join(read(paths[0]).text)
    for part in ("Environment moved", "cudnn_frontend", "1.32.0", "Likely owner: cuDNN"):
        assert part in text
    assert "whose key differs" in text
    index = " ".join(read(tmp_path / PAGES / "index.html").text)
    assert "cudnn_frontend 1.25.0 -> 1.32.0" in index
    assert "exit code 1" in index


def test_a_known_defect_got_fixed(tmp_path: Path) -> None:
    fixed = night(1, entry("a", outcome=Outcome.FIXED), exit_code=1)
    text = " ".join(read(tell(tmp_path, night(0, defect("a")), fixed)[0]).text)
    assert "known defect fixed" in text
    assert "remove the known rule" in text


def test_a_step_has_a_chart_that_can_be_zoomed(tmp_path: Path) -> None:
    values = [1.0, 1.01, 0.99, 1.0, 1.02, 0.98] * 4 + [1.2, 1.21, 1.19, 1.2]
    nights = [night(day, entry(metrics={"time_s": value})) for day, value in enumerate(values)]
    paths = tell(tmp_path, *nights)
    (charts,) = [path for path in paths if path.name.endswith(".trends.html")]
    assert "uPlot" in charts.read_text()
    page = read(paths[0])
    assert charts.name in page.links
    assert "a step of" in " ".join(page.text)


def test_every_link_leads_to_a_page(tmp_path: Path) -> None:
    first = night(0, entry())
    tell(tmp_path, first)
    paths = tell(tmp_path, night(1, entry()))
    for path in paths:
        for link in read(path).links:
            assert (tmp_path / PAGES / link).exists(), link
    assert page_name(first) in read(tmp_path / PAGES / "index.html").links


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    tonight = night(1, defect(HOSTILE, Outcome.UNEXPECTED), name=HOSTILE, folder=HOSTILE,
                    exit_code=1)  # fmt: skip
    for path in tell(tmp_path, night(0, entry(HOSTILE)), tonight):
        text = path.read_text()
        assert "<script>alert" not in text
        assert "\x1b" not in text
        assert path.parent == tmp_path / PAGES
