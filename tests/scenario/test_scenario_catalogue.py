"""The catalogue of known faults: complete, cited, and led to by what a reader has in hand."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from harness.scenario.catalogue import (
    CATALOGUE_FILE,
    CatalogueError,
    citing,
    read_catalogue,
    reference,
    search,
    short_name,
    skim,
)
from harness.scenario.files import PROJECT_ROOT
from harness.scenario.loader import load

KNOWN = read_catalogue()
FILES = {file.id: file for file in skim()}
FOLDER = PROJECT_ROOT / "scenarios" / "catalogue"
LOADED = load([FOLDER])
CF = "https://github.com/NVIDIA/cudnn-frontend"


def test_there_are_twenty_five_kinds_and_fifty_entries_that_run_here():
    assert len(KNOWN.kinds) == 25
    assert sum(entry.state == "run" for entry in KNOWN.entries) >= 50


@pytest.mark.parametrize("kind", KNOWN.kinds)
def test_a_kind_has_entries_and_scenarios_of_its_own(kind):
    assert KNOWN.of_kind(kind)
    own = [name for name in KNOWN.scenarios_of(kind) if name.startswith(f"catalogue/{kind}/")]
    assert own, f"no scenario in scenarios/catalogue/{kind} is listed under an entry of the kind"


@pytest.mark.parametrize("entry", KNOWN.entries, ids=lambda entry: entry.name)
def test_scenarios_of_an_entry_exist_and_cite_it(entry):
    for name in entry.scenarios:
        assert name in FILES, f"no scenario file has the id {name}"
        assert set(FILES[name].links) & set(entry.links), f"{name} cites none of its links"
    if entry.state != "not_applicable" and not entry.reason:
        assert KNOWN.covering(entry)


def test_what_is_skimmed_is_what_the_loader_reads():
    loaded = {item.family: item.scenario for item in LOADED.scenarios}
    assert LOADED.problems == ()
    for name, scenario in loaded.items():
        assert FILES[name].links == scenario.source


def test_no_scenario_of_the_catalogue_is_without_an_entry():
    listed = {name for entry in KNOWN.entries for name in entry.scenarios}
    assert {name for name in FILES if name.startswith("catalogue/")} <= listed


@pytest.mark.parametrize("item", LOADED.scenarios, ids=lambda item: item.scenario.id)
def test_a_twin_plants_something_and_says_what_it_shows(item):
    scenario = item.scenario
    twin = "twin" in scenario.tags
    planted = bool(scenario.inject) or isinstance(scenario.kernels.modelled.defects, tuple)
    assert twin == bool(scenario.known) or not planted
    assert not scenario.inject or twin
    assert not item.family.endswith("-twin") or (twin and planted)


def test_the_suite_holds_every_family_that_the_catalogue_leads_to():
    suite = load([PROJECT_ROOT / "configs" / "suites" / "catalogue.yaml"])
    assert suite.problems == ()
    there = {item.family for item in suite.scenarios}
    due = {name for entry in KNOWN.entries for name in entry.scenarios}
    # A quarter hour of their own.
    assert due - there == {"pr14/single", "pr14/multi"}


def page_module():
    path = PROJECT_ROOT / "docs" / "catalogue_table.py"
    spec = importlib.util.spec_from_file_location("catalogue_table", path)
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path[:] = before
    return module


def test_the_page_is_current_and_a_stale_one_is_noticed():
    page = (PROJECT_ROOT / "docs" / "catalogue.md").read_text(encoding="utf-8")
    tables = page_module()
    assert tables.updated(page) == page, "run python docs/catalogue_table.py"
    stale = page.replace("262209 scores", "262210 scores")
    assert stale != page
    assert tables.updated(stale) == page
    with pytest.raises(ValueError, match="expected the marks"):
        tables.updated(page.replace("<!-- end of entries -->", ""))


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["316"], "cudnn-frontend#316"),
        (["#316"], "cudnn-frontend#316"),
        (["cudnn-frontend#316"], "cudnn-frontend#316"),
        (["nvidia/CUDNN-frontend#316"], "cudnn-frontend#316"),
        ([f"{CF}/pull/316/files#diff-1"], "cudnn-frontend#316"),
        ([f"{CF}/issues/373"], "cudnn-frontend#388"),
        ([f"{CF}/pull/373"], "cudnn-frontend#388"),
        (["plateau", "thousands"], "sgl-project/sglang#30645"),
        (["Illegal", "256K"], "Megatron-LM#7463"),
        (["zigzag-halves"], "cudnn-frontend#561"),
    ],
)
def test_search_leads_to_the_entry(words, first):
    assert search(KNOWN, words)[0].name == first


@pytest.mark.parametrize("words", [["31"], ["tilelang#316"], ["zzz"], ["plateau", "316"]])
def test_search_finds_nothing_else(words):
    assert search(KNOWN, words) == ()


def test_every_link_leads_to_its_entry():
    for entry in KNOWN.entries:
        for link in entry.links:
            assert reference(link) is not None
            assert entry in search(KNOWN, [link])


@pytest.mark.parametrize(
    "pasted",
    [
        "http://github.com/NVIDIA/cudnn-frontend/pull/316",
        "https://www.github.com/NVIDIA/cudnn-frontend/pull/316/",
        "<https://github.com/NVIDIA/cudnn-frontend/pull/316>",
        "github.com/nvidia/cudnn-frontend/issues/316#issuecomment-1",
    ],
)
def test_links_lead_there_as_people_paste_them(pasted):
    assert [entry.name for entry in search(KNOWN, [pasted])] == [
        entry.name for entry in search(KNOWN, [f"{CF}/pull/316"])
    ]
    assert search(KNOWN, [pasted])


def test_reports_without_an_entry_lead_to_the_files_that_cite_them():
    assert [file.id for file in citing(FILES.values(), ["572"])] == ["public/old-gradient"]
    assert list(citing(FILES.values(), ["old"])) == []


def test_names_of_links():
    assert short_name(f"{CF}/pull/316") == "cudnn-frontend#316"
    assert short_name("https://github.com/a/b/issues/7") == "a/b#7"
    with pytest.raises(ValueError, match=r"expected https:"):
        short_name("https://github.com/a/b")


GOOD = """\
kinds:
  one: {title: A title, sign: A sign.}
entries:
  - links: [https://github.com/a/b/issues/7]
    kinds: [one]
    what: It breaks.
    evidence: [value]
    state: run
    scenarios: [a/b]
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("kinds: [one]", "kinds: [two]", "kinds two: expected one"),
        ("evidence: [value]", "evidence: [values]", "evidence values: expected selection"),
        ("state: run", "state: runs", "state runs: expected run"),
        ("state: run", "state: needs_gpu", "reason goes with"),
        ("    state: run", "    state: run\n    reason: none", "reason goes with"),
        ("    scenarios: [a/b]\n", "", "state run goes with scenarios"),
        ("issues/7", "issue/7", "expected https://github.com/OWNER"),
        ("sign: A sign.", "signs: A sign.", "signs"),
        ("    what: It breaks.\n", "", "what"),
        ("entries:", "entry:", "expected the keys kinds and entries"),
        ("kinds:\n  one", "kinds:\n one: [\n  one", "cannot be read"),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path, old, new, words):
    path = tmp_path / "catalogue.yaml"
    path.write_text(GOOD)
    assert read_catalogue(path).entries[0].name == "a/b#7"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(CatalogueError, match=words):
        read_catalogue(path)


def test_two_entries_of_one_name_are_an_error(tmp_path):
    path = tmp_path / "catalogue.yaml"
    path.write_text(GOOD + GOOD.partition("entries:\n")[2])
    with pytest.raises(CatalogueError, match="named twice"):
        read_catalogue(path)
    with pytest.raises(CatalogueError, match="cannot be read"):
        read_catalogue(tmp_path / "none.yaml")
    assert CATALOGUE_FILE.is_file()
