"""Suites on the command line: list, verify and a dry run take one wherever they take a file."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from harness.record.verdict import ExitCode
from harness.scenario.files import PROJECT_ROOT
from launch.cli import cli

CASE = """\
id: case/{name}
summary: A case.
model: small
level: scorer
microbatches: [{{sequences: [128, 64]}}]
matrix: {{parallel.context_parallel_size: [2, 4]}}
"""
SUITE = """\
suite: mine
summary: The wide ones.
scenarios: [one.yaml, two.yaml]
select: cp4
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / f"{name}.yaml").write_text(CASE.format(name=name))
    (tmp_path / "suite.yaml").write_text(SUITE)
    return tmp_path


def run(*arguments: str):
    return CliRunner().invoke(cli, list(arguments))


def test_list_shows_what_a_suite_chooses(folder):
    result = run("list", "suite.yaml", "--format", "ids")
    assert result.exit_code == ExitCode.OK
    assert result.stdout.splitlines() == ["case/one[cp4]", "case/two[cp4]"]
    narrowed = run("list", "suite.yaml", "-k", "two", "--format", "ids")
    assert narrowed.stdout.splitlines() == ["case/two[cp4]"]


def test_list_suites(folder):
    result = run("list", "--suites", ".")
    assert result.exit_code == ExitCode.OK
    assert result.stdout.split() == ["mine", "2", "scenarios", "suite.yaml", "The", "wide", "ones."]
    assert run("list", "--suites", "--format", "ids", ".").stdout == "mine\n"
    (row,) = json.loads(run("list", "--suites", "--format", "json", ".").stdout)
    assert (row["name"], row["scenario_ids"]) == ("mine", ["case/one[cp4]", "case/two[cp4]"])


def test_list_suites_where_there_is_none_is_code_5(folder):
    result = run("list", "--suites", "one.yaml")
    assert result.exit_code == ExitCode.NOTHING_RAN
    assert "no suite among these files" in result.stderr


def test_list_suites_takes_no_selection(folder):
    result = run("list", "--suites", "-k", "one", ".")
    assert result.exit_code == ExitCode.USAGE
    assert "--suites lists whole suites; leave out -k and -t" in result.stderr


def test_verify_counts_and_explains_suites(folder):
    result = run("verify", "suite.yaml")
    assert result.exit_code == ExitCode.OK
    assert result.stdout == "1 suite, 2 files, 2 scenarios, no errors\n"
    lines = run("verify", "--explain", "suite.yaml").stdout.splitlines()
    assert lines[:2] == ["suite mine  2 scenarios  suite.yaml:1", "  The wide ones."]
    (suite,) = json.loads(run("verify", "--format", "json", "suite.yaml").stdout)["suites"]
    assert suite["scenario_ids"] == ["case/one[cp4]", "case/two[cp4]"]


def test_a_mistake_in_a_suite_is_one_line_and_code_2(folder):
    (folder / "suite.yaml").write_text(SUITE.replace("two.yaml", "three.yaml"))
    result = run("verify", "suite.yaml")
    assert result.exit_code == ExitCode.USAGE
    first, last = result.stdout.splitlines()
    assert first.startswith(
        "suite.yaml:3:23: scenarios[1]: no such file or folder, looked for three"
    )
    assert last == "1 file, 0 scenarios, 1 error"


def test_the_torchrun_entry_takes_a_suite(folder):
    """As ``torchrun`` starts it, one worker, without running anything."""
    done = subprocess.run(
        [
            sys.executable,
            PROJECT_ROOT / "launch" / "run.py",
            "--dry-run",
            "--scenario",
            "suite.yaml",
        ],
        cwd=folder,
        env={
            "PATH": "/usr/bin:/bin",
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "1",
            "TORCHELASTIC_RUN_ID": "suite-dry-run",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == ExitCode.OK, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[:-1]] == ["case/one[cp4]", "case/two[cp4]"]
    assert lines[0].endswith("one.yaml:1")
    assert lines[-1].startswith("2 scenarios, isolation ")
    assert "--scenario suite.yaml" in lines[-1]
