"""Paths on the command line: an empty one is a mistake, and is told before anything is written."""

import pytest
from click.testing import CliRunner

from launch.cli import cli


@pytest.mark.parametrize(
    "words",
    [
        ("minimise", "a.yaml", "--out", ""),
        ("search", "a.yaml", "--out="),
        ("search", "a.yaml", "--megatron="),
        ("intake", "a.log", "--out="),
        ("export", "a.yaml", "--out="),
        ("capture", "to-scenario", "somewhere", "--out="),
        ("doctor", "--out="),
        ("status", ""),
        ("verify", ""),
        ("report", ""),
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert "the path is empty; is a variable of the shell unset?" in done.output
    assert list(tmp_path.iterdir()) == []
