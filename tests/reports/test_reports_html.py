"""The page holds together without a browser: whole markup, no network, no foreign markup, size."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from page_records import dynamic_cp, many_ranks, stopped
from sample_parts import GPU, HOSTILE, environment
from sample_records import (
    ALL,
    crash,
    fixed,
    hang,
    hostile,
    memory_fault,
    not_run,
    passing,
    released_defect,
    run_record,
    write_run,
    wrong_path,
    wrong_selection,
)

import reports.html.page as page_module
from harness.record.files import safe_name
from harness.record.result import ScenarioResult
from harness.record.state import StateEvidence
from reports.action import Action, ActionKind
from reports.actions import actions
from reports.html.page import render_html
from reports.render import HTML_FILE, read_summary, write_all
from reports.summary import RunSummary, summarise
from reports.text import visible

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Elements, text and attributes of a page; every element has to be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), f"{tag} has an attribute twice: {attrs}"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def values(self, name: str) -> list[str]:
        return [str(attrs[name]) for _, attrs in self.elements if name in attrs]

    def count(self, tag: str) -> int:
        return sum(found == tag for found, _ in self.elements)


def summary_of(*results: ScenarioResult, **changes: object) -> RunSummary:
    return summarise(run_record(results, **changes), results)


def page_of(*results: ScenarioResult, **changes: object) -> Page:
    return Page(render_html(summary_of(*results, **changes)))


MAKERS = (*ALL, dynamic_cp, many_ranks, stopped)


@pytest.mark.parametrize("maker", MAKERS)
def test_markup_is_whole_and_asks_for_nothing(maker: Callable[[], ScenarioResult]) -> None:
    text = render_html(summary_of(maker()))
    page = Page(text)
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    for target in page.values("href"):
        if target.startswith("#"):
            assert target[1:] in ids
        else:
            assert re.match(r"https://|data:,|[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*$", target)
    for name in ("src", "srcset", "action", "onclick", "onload", "ping", "data"):
        assert page.values(name) == []
    assert page.count("script") == page.count("iframe") == page.count("object") == 0
    style = text[text.index("<style>") : text.index("</style>")]
    assert "@import" not in style
    assert "url(" not in style
    assert all(line.isprintable() for line in text.split("\n"))


def test_the_page_forbids_scripts_and_network_itself() -> None:
    page = page_of(passing())
    policies = [
        attrs["content"]
        for tag, attrs in page.elements
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def spoiled(text: str) -> ScenarioResult:
    return replace(
        hostile(), id=f"x{text}", summary=text, explanation=f"so {text}", expected=text, file=text
    )


def test_hostile_text_changes_no_structure() -> None:
    plain, odd = (page_of(spoiled(text)) for text in ("plain", HOSTILE))
    count = Counter(tag for tag, _ in plain.elements)
    assert Counter(tag for tag, _ in odd.elements) == count
    assert [tag for tag, _ in odd.elements] == [tag for tag, _ in plain.elements]


def test_hostile_text_is_shown_in_full() -> None:
    page = page_of(hostile())
    assert page.text.count(visible(HOSTILE)) > 20
    assert "\x1b" not in page.text
    assert "\u202e" not in page.text


def test_links_only_of_plain_addresses() -> None:
    for odd in ("javascript:alert(1)", "http://plain", "https://a b", 'https://a"onclick="x'):
        item = replace(crash(), source=(odd,))
        page = page_of(item)
        assert odd in page.text
        assert not any(odd in target for target in page.values("href"))
    good = "https://github.com/NVIDIA/Megatron-LM/pull/6206"
    assert good in page_of(crash()).values("href")


def kinds(*results: ScenarioResult, **changes: object) -> list[ActionKind]:
    return [action.kind for action in actions(summary_of(*results, **changes))]


def test_what_needs_action_comes_first_and_in_order() -> None:
    results = [maker() for maker in ALL if maker is not hostile]
    found = actions(summary_of(*results))
    assert [action.kind for action in found] == [
        *[ActionKind.FAULT] * 3,
        ActionKind.WRONG,
        ActionKind.FIXED,
        ActionKind.PATH,
    ]
    assert {action.scenario for action in found} == {
        item.id
        for item in (crash(), hang(), memory_fault(), wrong_selection(), fixed(), wrong_path())
    }
    text = page_of(*results).text
    assert text.index("To act on") < text.index("crash: global_rank 2 in phase score")
    assert text.index("crash: global_rank 2 in phase score") < text.index("9 scenarios: ")


def test_actions_of_the_run_itself() -> None:
    assert kinds(passing()) == []
    assert kinds(passing(), released_defect(), not_run()) == []
    assert kinds(passing(), exit_code=None, state="killed") == [ActionKind.RUN]
    assert kinds(passing(), scenario_ids=(passing().id, "lost")) == [ActionKind.RUN]
    assert kinds(passing(), exit_code=4) == [ActionKind.RUN]
    assert kinds(passing(), exit_code=130, exit_meaning="interrupted") == [ActionKind.RUN]
    with_gpu = environment(gpus=(GPU,))
    found = actions(summary_of(passing(), environment=with_gpu))
    assert [action.kind for action in found] == [ActionKind.MODELLED]
    assert found[0].text == "1 scenario ran modelled kernels on a machine with 1 GPU"


def test_changes_against_another_run_take_their_place() -> None:
    changes = [
        Action(kind=ActionKind.SLOWER, text="2.0 s, before 1.0 s", scenario=passing().id),
        Action(kind=ActionKind.FLIPPED, text="pass, before refused", scenario=passing().id),
    ]
    found = actions(replace(summary_of(passing(), crash(), fixed()), changes=tuple(changes)))
    assert [action.kind for action in found] == [
        ActionKind.FAULT,
        ActionKind.FLIPPED,
        ActionKind.FIXED,
        ActionKind.SLOWER,
    ]
    page = Page(render_html(replace(summary_of(passing()), changes=tuple(changes))))
    assert "pass, before refused" in page.text


def test_a_quiet_run_is_one_line() -> None:
    page = page_of(passing(), released_defect())
    part = page.text[page.text.index("To act on") : page.text.index("Results")]
    assert part.strip().split("\n")[1:] == [
        "Nothing. 2 scenarios: 1 known (1 wrong_selection), 1 expected (1 pass); 2.5 s in "
        "scenarios, 20.0 s from start to end."
    ]


def test_a_scenario_is_shown_with_its_figures_and_evidence() -> None:
    page = page_of(dynamic_cp())
    for words in (
        "Layout of microbatch 0, 2",
        "Layout of microbatch 1",
        "1 further layout not drawn",
        "Overlap by cp_rank and sequence, microbatch 3",
        "Picks against limits",
        "Phases over time",
        "Calls, as one rank's journal has them",
        "q bfloat16 [64, 32, 128]",
        "Time by phase",
        dynamic_cp().rerun,
    ):
        assert words in page.text, words
    page = page_of(released_defect())
    assert "Keys shown by the scoring kernel" in page.text
    assert page.count("svg") > 5


def test_what_the_collectors_found_is_told_for_the_whole_run() -> None:
    item = passing()
    state = StateEvidence(
        global_rank=0, cp_rank=0, microbatch=0, seed=0, groups=7, settings=5, dispatch=3
    )
    watched = replace(item, attempts=(replace(item.last, states=(state,)),))
    assert "State before and after each microbatch" in page_of(watched).text
    assert "What the collectors found" not in page_of(item).text


def test_stacks_of_the_first_fault_are_shown_and_linked(tmp_path: Path) -> None:
    run = write_run(tmp_path, [crash()])
    folder = run / "ranks" / safe_name(crash().id) / "1"
    folder.mkdir(parents=True)
    (folder / "rank2.stacks").write_bytes(b"Thread 0x1 <main>\n\x1b[31m\xff File model.py\n")
    page = Page(render_html(read_summary(run)))
    assert "Thread 0x1 <main>\n\\x1b[31m\ufffd File model.py" in page.text
    assert f"ranks/{safe_name(crash().id)}/1/rank2.stacks" in page.values("href")


def test_modelled_kernels_never_look_like_hardware() -> None:
    modelled = render_html(summary_of(passing()))
    assert 'class="chip outline">modelled 1.32.0 sm100' in modelled
    item = passing()
    proof = replace(item.last.proof, kernels={"indexer_forward": "hardware"})
    real = replace(item, attempts=(replace(item.last, proof=proof),))
    assert 'class="chip solid">hardware' in render_html(summary_of(real))


def test_large_runs_keep_what_needs_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MAX_FULL_EXPECTED", 3)
    results = [*(passing(f"p/{n}") for n in range(10)), crash()]
    page = page_of(*results)
    assert "7 of them without figures and tables" in page.text
    assert page.text.count("Layout of microbatch 0") == 4
    assert all(item.rerun in page.text for item in results)
    monkeypatch.setattr(page_module, "MAX_FULL_BYTES", 1)
    page = page_of(*results)
    assert page.text.count("Layout of microbatch 0") == 1
    assert "How each rank ended" in page.text, "the crash is what is shown in full"


def test_hundreds_of_ranks_stay_small() -> None:
    text = render_html(summary_of(many_ranks()))
    assert len(text) < 400_000
    assert "512 ranks drawn together in 16 groups" in text
    assert "cp_rank 0..255" in text


def test_report_of_nothing() -> None:
    page = Page(render_html(summarise(None, [])))
    assert "exit code unknown" in page.text
    assert "Run without a readable run.json" in page.text


def test_odd_scenarios_lose_their_figures_only() -> None:
    for odd in ({}, {"microbatches": "x"}, {"microbatches": [{"sequences": [7], "padded": [9]}]}):
        item = replace(crash(), scenario=odd)
        page = page_of(item)
        assert "Layout of microbatch" not in page.text
        assert item.rerun in page.text


def test_written_beside_the_report(tmp_path: Path) -> None:
    write_run(tmp_path, [maker() for maker in ALL])
    paths = {path.name: path for path in write_all(tmp_path)}
    Page(paths[HTML_FILE].read_text(encoding="utf-8"))
