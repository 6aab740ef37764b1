"""Suite files: what they choose, where their paths lead, and what is said of wrong ones."""

from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.scenario import suite_file
from harness.scenario.collection import MAX_DEPTH
from harness.scenario.files import PROJECT_ROOT
from harness.scenario.generate import SUITE_SCHEMA_PATH, suite_schema
from harness.scenario.loader import LoadResult, load
from harness.scenario.yaml12 import parse

SUITE = """\
suite: mine
summary: A suite.
scenarios: [cases]
"""
CASE = """\
id: case/{name}
summary: A case.
tags: [{tags}]
model: small
microbatches: [{{sequences: [128, 64]}}]
matrix: {{parallel.context_parallel_size: [2, 4]}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of two scenarios each in cases/, and one of two in more/."""
    monkeypatch.chdir(tmp_path)
    for place, name, tags in (
        ("cases", "one", "fast"),
        ("cases", "two", "fast, wide"),
        ("more", "three", "wide"),
    ):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / f"{name}.yaml").write_text(CASE.format(name=name, tags=tags))
    (tmp_path / "suite.yaml").write_text(SUITE)
    return tmp_path


def ids(result: LoadResult) -> list[str]:
    return [loaded.scenario.id.removeprefix("case/") for loaded in result.scenarios]


def messages(result: LoadResult) -> list[str]:
    return [str(problem) for problem in result.problems]


def test_a_suite_stands_for_its_scenarios(folder):
    result = load(["suite.yaml"])
    assert result.problems == ()
    assert ids(result) == ["one[cp2]", "one[cp4]", "two[cp2]", "two[cp4]"]
    assert result.num_files == 2
    (suite,) = result.suites
    assert (suite.name, suite.summary, suite.file, suite.line) == (
        "mine",
        "A suite.",
        "suite.yaml",
        1,
    )
    assert suite.scenario_ids == tuple(loaded.scenario.id for loaded in result.scenarios)
    assert {loaded.file for loaded in result.scenarios} == {"cases/one.yaml", "cases/two.yaml"}


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [
        ("select: one", ["one[cp2]", "one[cp4]"]),
        ("select: cp4 and not two", ["one[cp4]"]),
        ("tags: [wide]", ["two[cp2]", "two[cp4]"]),
        ("tags: [fast, wide]\nselect: cp2", ["two[cp2]"]),
    ],
)
def test_select_and_tags_narrow_the_choice(folder, keys, chosen):
    (folder / "suite.yaml").write_text(SUITE + keys + "\n")
    result = load(["suite.yaml"])
    assert result.problems == ()
    assert ids(result) == chosen


def test_a_file_given_beside_a_suite_that_narrows_it_counts_in_full_and_once(folder):
    (folder / "suite.yaml").write_text(SUITE + "select: cp4\n")
    assert ids(load(["suite.yaml"])) == ["one[cp4]", "two[cp4]"]
    result = load(["suite.yaml", "cases/one.yaml"])
    assert ids(result) == ["one[cp2]", "one[cp4]", "two[cp4]"]


def test_paths_are_looked_for_beside_the_suite_and_then_in_the_project(folder, monkeypatch):
    project = folder / "project"
    (project / "scenarios").mkdir(parents=True)
    (project / "scenarios" / "four.yaml").write_text(CASE.format(name="four", tags="x"))
    monkeypatch.setattr(suite_file, "PROJECT_ROOT", project)
    (folder / "suite.yaml").write_text(
        SUITE.replace("[cases]", "[cases/one.yaml, scenarios, ./more/../more/three.yaml]")
    )
    result = load([folder / "suite.yaml"])
    assert result.problems == ()
    assert ids(result)[::2] == ["one[cp2]", "four[cp2]", "three[cp2]"]
    (project / "cases").mkdir()
    assert ids(load([folder / "suite.yaml"]))[0] == "one[cp2]"


def test_a_folder_on_the_command_line_may_hold_suites(folder):
    result = load(["."])
    assert result.problems == ()
    assert (result.num_files, len(result.suites)) == (3, 1)
    assert sorted(set(ids(result))) == sorted(ids(result))


def test_a_folder_in_a_suite_stands_for_its_scenarios_alone(folder):
    """Else a suite kept beside its scenarios could not name their folder."""
    (folder / "suite.yaml").rename(folder / "cases" / "suite.yaml")
    (folder / "cases" / "suite.yaml").write_text(SUITE.replace("[cases]", "['.']"))
    (folder / "cases" / "broken_suite.yaml").write_text("suite: [")
    (folder / "cases" / "broken_suite.yaml").write_text("suite: broken\nscenarios: [nowhere]\n")
    result = load(["cases/suite.yaml"])
    assert result.problems == ()
    assert ids(result) == ["one[cp2]", "one[cp4]", "two[cp2]", "two[cp4]"]


def test_suites_name_suites(folder):
    (folder / "outer.yaml").write_text(
        "suite: outer\nsummary: Two.\nscenarios: [suite.yaml, more]\nselect: cp2\n"
    )
    result = load(["outer.yaml"])
    assert result.problems == ()
    assert ids(result) == ["one[cp2]", "two[cp2]", "three[cp2]"]
    assert [(suite.name, len(suite.scenario_ids)) for suite in result.suites] == [
        ("outer", 3),
        ("mine", 4),
    ]


def test_suites_that_lead_back_to_themselves_are_reported(folder):
    (folder / "suite.yaml").write_text(SUITE.replace("[cases]", "[b.yaml]"))
    (folder / "b.yaml").write_text(SUITE.replace("mine", "b").replace("[cases]", "[suite.yaml]"))
    (folder / "c.yaml").write_text(SUITE.replace("mine", "c").replace("[cases]", "[c.yaml]"))
    result = load(["suite.yaml", "c.yaml"])
    assert messages(result) == [
        "b.yaml:3:13: scenarios[0]: leads back to itself (suite.yaml -> b.yaml -> suite.yaml); "
        "remove one of these entries",
        "c.yaml:3:13: scenarios[0]: leads back to itself (c.yaml -> c.yaml); remove one of these "
        "entries",
    ]
    assert result.scenarios == ()


def test_nesting_is_bounded(folder):
    for level in range(12):
        text = SUITE.replace("mine", f"s{level}").replace("cases", f"s{level + 1}.yaml")
        (folder / f"s{level}.yaml").write_text(text)
    (folder / "s12.yaml").write_text(SUITE)
    (message,) = messages(load(["s0.yaml"]))
    assert message == (
        f"s{MAX_DEPTH - 1}.yaml:3:13: scenarios[0]: suites nested more than {MAX_DEPTH} levels "
        "deep; name their files here"
    )
    assert load([f"s{13 - MAX_DEPTH}.yaml"]).ok


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("suite: mine", "suite: my suite", "1:8: suite: expected a word of letters"),
        ("suite: mine", "suite: 12", "1:8: suite: expected text, found 12; put it in quotes"),
        ("suite: mine\n", "", "1:1: suite: missing key"),
        ("summary: A suite.\n", "", "1:1: summary: missing key"),
        ("scenarios: [cases]\n", "", "1:1: scenarios: missing key"),
        ("scenarios:", "scenario:", "3:1: scenario: unknown key; did you mean scenarios?"),
        ("[cases]", "[]", "3:12: scenarios: expected at least 1, found an empty list"),
        ("[cases]", "cases", "3:12: scenarios: expected a list, found 'cases'"),
        ("[cases]", "[cases, 1]", "3:20: scenarios[1]: expected text, found 1; put it in quotes"),
        ("[cases]", "[cases, cases]", "3:12: scenarios: entry 2 repeats entry 1; give it once"),
        (
            "[cases]",
            "[cases, casse]",
            "3:20: scenarios[1]: no such file or folder, looked for casse and "
            f"{PROJECT_ROOT}/casse; give a path relative to this file or to the project's root",
        ),
        (
            "[cases]",
            "[cases]\nselect: one and",
            "4:9: select: expected a word at column 8, found the end in 'one and'; write such as",
        ),
        (
            "[cases]",
            "[cases]\nselect: nothing",
            "4:9: select: chooses none of 4 scenarios; change it, see dsa-harness list",
        ),
        ("[cases]", "[cases]\ntags: [slow]", "4:7: tags: chooses none of 4 scenarios"),
        ("[cases]", "[cases]\ntag: [slow]", "4:1: tag: unknown key; did you mean tags?"),
        ("[cases]", "[cases]\nsource: [nowhere]", "4:10: source[0]: expected a link"),
        (
            "[cases]",
            "[cases]\nlevel: scorer",
            "4:1: level: unknown key; the keys here are suite, summary, source, scenarios, select, "
            "tags",
        ),
        ("[cases]", "[empty]", "3:13: scenarios[0]: no scenario file (*.yaml) in this folder"),
        ("[cases]", "[suites]", "3:12: scenarios: names no scenario file; add some"),
    ],
)
def test_each_mistake_has_its_place_and_words(folder, old, new, problem):
    (folder / "empty").mkdir()
    (folder / "suites").mkdir()
    (folder / "suites" / "a.yaml").write_text(SUITE)
    assert old in SUITE
    (folder / "suite.yaml").write_text(SUITE.replace(old, new))
    result = load(["suite.yaml"])
    (message,) = messages(result)
    assert message.startswith(f"suite.yaml:{problem}")
    assert not result.ok
    assert result.scenarios == ()
    assert result.suites == ()


def test_mistakes_of_a_suite_and_of_its_files_are_shown_together(folder):
    (folder / "suite.yaml").write_text(SUITE + "slect: one\n")
    (folder / "cases" / "one.yaml").write_text(
        CASE.format(name="one", tags="fast").replace("small", "smal")
    )
    assert [message.split(": ")[0] for message in messages(load(["suite.yaml"]))] == [
        "suite.yaml:4:1",
        "cases/one.yaml:4:8",
    ]


def test_an_empty_choice_is_not_blamed_on_a_suite_whose_files_are_broken(folder):
    (folder / "suite.yaml").write_text(SUITE + "select: one\n")
    (folder / "cases" / "one.yaml").write_text(
        CASE.format(name="one", tags="fast").replace("small", "smal")
    )
    (message,) = messages(load(["suite.yaml"]))
    assert message.startswith("cases/one.yaml:4:8: model: no model named 'smal'")


def test_an_unreadable_path_in_a_suite_is_reported_in_the_suite(folder):
    (folder / "suite.yaml").write_text(SUITE.replace("cases", "x" * 290))
    (message,) = messages(load(["suite.yaml"]))
    assert message.startswith(
        "suite.yaml:3:13: scenarios[0]: no such file or folder, looked for xxx"
    )


def test_a_file_that_is_no_suite_by_its_key_is_a_scenario(folder):
    """Only what lacks both keys of a suite is read as a scenario."""
    (folder / "suite.yaml").write_text("summary: A suite.\n")
    assert any("id: missing key" in message for message in messages(load(["suite.yaml"])))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    value=st.sampled_from(
        ["0", "null", "[]", "{}", "[1]", "[[cases]]", "{a: 1}", "'x'", "[cases]", "['(']"]
    ),
    key=st.sampled_from(["suite", "summary", "source", "scenarios", "select", "tags", "x", "id"]),
)
def test_no_wrong_value_raises(folder, key, value):
    kept = [line for line in SUITE.splitlines() if line.split(":")[0] != key]
    (folder / "suite.yaml").write_text("\n".join([*kept, f"{key}: {value}"]))
    load(["suite.yaml"])


SHIPPED = sorted((PROJECT_ROOT / "configs" / "suites").rglob("*.yaml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_suites_load_and_meet_their_schema(path):
    result = load([path])
    assert result.problems == ()
    # A suite may name another one, which is then listed beside it.
    (suite,) = [suite for suite in result.suites if suite.name == path.stem]
    assert len(result.scenarios) == len(suite.scenario_ids) > 0
    document, problems = parse(path.read_text(), str(path))
    assert problems == ()
    jsonschema.validate(document.data, suite_schema())
    pointer = path.read_text().splitlines()[0].partition("$schema=")[2]
    assert (path.parent / pointer).resolve() == SUITE_SCHEMA_PATH


def test_suites_are_shipped():
    assert "pr14" in [path.stem for path in SHIPPED]


@pytest.mark.parametrize(
    "changes", [{"foo": 1}, {"scenarios": []}, {"scenarios": "a"}, {"suite": "a b"}, {"tags": "x"}]
)
def test_the_schema_refuses_what_the_loader_refuses(changes):
    data = {"suite": "a", "summary": "b", "scenarios": ["c"]}
    jsonschema.validate(data, suite_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data | changes, suite_schema())
