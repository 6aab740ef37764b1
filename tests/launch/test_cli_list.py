import json

import pytest
from click.testing import CliRunner

from harness.record.verdict import ExitCode
from launch.cli import cli

TEXT = """\
id: case/one
summary: One.
tags: [fast, cp]
model: small
microbatches: [{sequences: [128, 64]}]
matrix: {parallel.context_parallel_size: [2, 4]}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.yaml").write_text(TEXT)
    (tmp_path / "two.yaml").write_text(
        TEXT.replace("one", "two").replace("[fast, cp]", "[cp]").replace("[2, 4]", "[1]")
    )
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(cli, ["list", *arguments])


def test_columns(folder):
    result = run(".")
    assert result.exit_code == ExitCode.OK
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [(r[0], r[2], r[3], r[4], r[5]) for r in rows] == [
        ("case/one[cp2]", "2", "ranks", "attention", "fast,cp"),
        ("case/one[cp4]", "4", "ranks", "attention", "fast,cp"),
        ("case/two[cp1]", "1", "rank", "attention", "cp"),
    ]
    assert all(len(row[1]) == 12 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["-k", "cp4 or two"], ["case/one[cp4]", "case/two[cp1]"]),
        (["-k", "=case/one[cp2]"], ["case/one[cp2]"]),
        (["-t", "fast"], ["case/one[cp2]", "case/one[cp4]"]),
        (["-t", "cp", "--tag", "fast", "-k", "not cp2"], ["case/one[cp4]"]),
    ],
)
def test_selection(folder, arguments, ids):
    result = run(".", "--format", "ids", *arguments)
    assert result.stdout.splitlines() == ids
    assert result.exit_code == ExitCode.OK


def test_json(folder):
    rows = json.loads(run("two.yaml", "--format", "json").stdout)
    assert [(row["id"], row["num_ranks"], row["tags"]) for row in rows] == [
        ("case/two[cp1]", 1, ["cp"])
    ]


def test_nothing_selected_is_code_5(folder):
    result = run(".", "-k", "nothing")
    assert result.exit_code == ExitCode.NOTHING_RAN
    assert result.stdout == ""
    assert result.stderr == "no scenario selected of 3\n"


def test_a_bad_expression_is_code_2(folder):
    result = run(".", "-k", "a b")
    assert result.exit_code == ExitCode.USAGE
    assert "expected 'and' or 'or' at column 3" in result.stderr


def test_a_bad_file_is_code_2_and_the_others_are_listed(folder):
    (folder / "bad.yaml").write_text("id: [")
    result = run(".", "--format", "ids")
    assert result.exit_code == ExitCode.USAGE
    assert len(result.stdout.splitlines()) == 3
    assert result.stderr.startswith("bad.yaml:")


def test_a_folder_without_scenarios_is_code_2(folder):
    (folder / "empty").mkdir()
    result = run("empty")
    assert result.exit_code == ExitCode.USAGE
    assert "no scenario file (*.yaml)" in result.stderr
