"""The command lines of search and minimise: what is refused, in one line."""

import pytest
from click.testing import CliRunner

from harness.scenario.loader import load
from launch.cli import cli
from launch.durations import Duration

CASE = """\
id: case/one
summary: A case.
model: small
level: scorer
parallel: {context_parallel_size: 2}
microbatches: [{sequences: [8]}]
"""


@pytest.fixture
def case(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "case.yaml").write_text(CASE)
    return tmp_path


def refused(*words):
    done = CliRunner().invoke(cli, list(words))
    assert done.exit_code == 2, done.output
    return done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("search", "missing.yaml"), "no such file or folder"),
        (("search", "case.yaml", "--budget", "soon"), "expected a duration such as 60s"),
        (("search", "case.yaml", "-k", "other"), "matches none of 1 scenarios"),
        (("search", "case.yaml", "--inject", "nothing@0:score"), "no kind 'nothing'"),
        (("search", "case.yaml", "--modelled", "9.9"), "expected a release with a model"),
        (("search", "case.yaml", "--megatron", "nowhere"), "no such folder"),
        (("search", "case.yaml", "--out", "case.yaml"), "is a file, expected a folder"),
        (("minimise", "case.yaml", "--accept", "3/2"), "expected K/N with 1 <= K <= N"),
        (("minimise", "case.yaml", "--signature", "case.yaml"), "expected a signature or a result"),
    ],
)
def test_mistakes_cost_one_line(case, words, said):
    assert said in refused(*words)
    assert [path.name for path in case.iterdir()] == ["case.yaml"]


def test_several_scenarios_have_to_be_chosen_from(case):
    (case / "case.yaml").write_text(CASE + "matrix: {values.seeds: [[0], [1]]}\n")
    assert "expected one scenario, found 2" in refused("minimise", "case.yaml")


def test_an_earlier_minimisation_is_not_written_over(case):
    (case / "out").mkdir()
    (case / "out" / "evaluations.jsonl").write_text("")
    said = refused("minimise", "case.yaml", "--out", "out")
    assert "add --resume, or another --out" in said


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("60s", 60.0), ("1.5m", 90.0), ("2 h", 7200.0)]
)
def test_durations(text, seconds):
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("command", ["search", "minimise"])
def test_a_folder_that_cannot_be_made_is_a_mistake_of_the_user(case, command):
    assert "--out /proc/no" in refused(command, "case.yaml", "--out", "/proc/no")


def test_a_signature_nested_without_end_is_refused(case):
    (case / "deep.json").write_text("[" * 100_000)
    said = refused("minimise", "case.yaml", "--signature", "deep.json")
    assert "expected a signature or a result of a run" in said


def test_too_few_ranks_are_told_before_any_is_started(case):
    (case / "case.yaml").write_text(CASE.replace("scorer", "attention"))
    said = refused("search", "case.yaml", "--ranks", "1")
    assert "--ranks 1: expected at least 2 for the histories of case/one" in said
    assert [path.name for path in case.iterdir()] == ["case.yaml"]


def test_what_a_file_is_warned_of_is_shown_here_as_well(case):
    (case / "case.yaml").write_text(CASE + "search: {cp: [1, 2]}\n")
    said = refused("search", "case.yaml", "--megatron", "nowhere")
    assert "case.yaml:7:14: warning: search.cp: cp is ignored without Dynamic CP" in said


def test_a_folder_of_another_case_is_not_gone_on_with(tmp_path):
    from launch.minimise import _claim
    from launch.warm_options import WarmError

    (one, other) = load(
        ["scenarios/search/unfused.yaml", "scenarios/search/training.yaml"]
    ).scenarios
    _claim(tmp_path, one.scenario)
    _claim(tmp_path, one.scenario)
    with pytest.raises(WarmError, match=r"holds a minimisation of .*; choose another --out"):
        _claim(tmp_path, other.scenario)
