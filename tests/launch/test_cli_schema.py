import json

import pytest
from click.testing import CliRunner

from harness.record.verdict import ExitCode
from harness.scenario import generate
from launch.cli import cli


@pytest.fixture
def kept(tmp_path, monkeypatch):
    path = tmp_path / "scenario.schema.json"
    monkeypatch.setattr(generate, "SCHEMA_PATH", path)
    monkeypatch.setattr(generate, "SUITE_SCHEMA_PATH", tmp_path / "suite.schema.json")
    return path


def run(*arguments: str):
    return CliRunner().invoke(cli, ["schema", *arguments])


def test_the_schema_is_printed():
    assert json.loads(run().stdout)["title"] == "DSA harness scenario, version 1"
    assert json.loads(run("--suite").stdout)["title"] == "DSA harness suite, version 1"


def test_check_and_write(kept):
    assert run("--check").exit_code == ExitCode.CHECK_FAILED
    assert run("--write").exit_code == ExitCode.OK
    assert run("--check").exit_code == ExitCode.OK
    for name in ("scenario.schema.json", "suite.schema.json"):
        run("--write")
        (kept.parent / name).write_text("{}")
        stale = run("--check")
        assert stale.exit_code == ExitCode.CHECK_FAILED
        assert f"{name} is stale; run dsa-harness schema --write" in stale.stdout
