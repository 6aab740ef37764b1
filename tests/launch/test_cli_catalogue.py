"""``dsa-harness catalogue``: what it prints, how it ends, and what it leaves unimported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from harness.record.verdict import ExitCode
from launch.cli import cli


def catalogue(*arguments: str):
    return CliRunner().invoke(cli, ["catalogue", *arguments], standalone_mode=False)


def test_all_entries_stand_under_their_kinds():
    done = catalogue()
    assert done.exit_code == 0
    assert "int32-addresses: Row times stride in 32 bits" in done.output
    assert "a GPU has something to add" in done.output.splitlines()[-1]


def test_a_search_shows_the_report_and_files_to_run():
    done = catalogue("--search", "7463")
    assert "https://github.com/NVIDIA/Megatron-LM/issues/7463" in done.output
    assert "scenarios/catalogue/int32-addresses/scratch-rows-above.yaml" in done.output
    assert "a GPU adds: which of the candidate causes it is" in done.output


def test_words_have_to_be_met_together():
    both = catalogue("--search", "illegal address", "--search", "256K").output
    assert "Megatron-LM#7463" in both
    assert "cudnn-frontend#311" not in both


def test_a_report_without_an_entry_leads_to_the_files_that_cite_it():
    done = catalogue("--search", "572")
    assert done.exit_code == 0
    assert "scenarios/public/old-gradient.yaml" in done.output


def test_nothing_found_has_an_exit_code_of_its_own():
    done = catalogue("--search", "zzz")
    assert done.return_value == ExitCode.NOTHING_RAN or done.exit_code == ExitCode.NOTHING_RAN


def test_kinds_and_gpu_narrow():
    every = json.loads(catalogue("--kind", "graphs", "--json").output)["entries"]
    names = {entry["name"] for entry in every}
    assert "cudnn-frontend#356" in names
    both = json.loads(catalogue("--kind", "graphs", "--needs-gpu", "--json").output)["entries"]
    assert {entry["name"] for entry in both} < names
    assert all(entry["needs_gpu"] for entry in both)


def test_json_names_files_that_are_there(tmp_path):
    from pathlib import Path

    entries = json.loads(catalogue("--json").output)["entries"]
    assert len(entries) >= 71
    assert all(Path(file).is_file() for entry in entries for file in entry["files"])


def test_json_names_the_files_that_cite_a_report_without_an_entry():
    found = json.loads(catalogue("--search", "572", "--json").output)
    assert found["entries"] == []
    assert [file.rpartition("/")[2] for file in found["cited_by"]] == ["old-gradient.yaml"]


def test_what_to_leave_out_is_what_was_given():
    done = CliRunner().invoke(cli, ["catalogue", "--kind", "dynamic-cp", "--needs-gpu"])
    assert "leave out --kind or --needs-gpu" in done.stderr


def test_an_unknown_kind_lists_the_known_ones():
    import click

    with pytest.raises(click.UsageError, match="expected one of int32-addresses"):
        cli.main(["catalogue", "--kind", "graph"], standalone_mode=False)


def test_nothing_heavy_is_imported():
    code = (
        "import sys; sys.argv[1:] = ['catalogue', '--search', '316']\n"
        "from launch.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'pydantic', 'numpy', 'rich', 'jinja2'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
