from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from sample_records import ALL, crash, passing, write_run

from harness.record.files import RUN_FILE, result_path
from launch.report import report
from reports.render import DOCUMENTS, FORMATS, MARKDOWN_FILE, write_all
from reports.store import RunFolderError


def test_documents_are_rebuilt_from_the_files_alone(tmp_path: Path) -> None:
    write_run(tmp_path, [maker() for maker in ALL])
    paths = write_all(tmp_path)
    assert paths == [tmp_path / name for name in DOCUMENTS]
    first = [path.read_bytes() for path in paths]
    for path in paths:
        path.unlink()
    for _ in range(2):
        write_all(tmp_path)
        assert [path.read_bytes() for path in paths] == first
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "results", *DOCUMENTS}


def test_cut_files_are_told_in_the_report(tmp_path: Path) -> None:
    write_run(tmp_path, [passing(), crash()])
    result_path(tmp_path, crash().id).write_text("{")
    text = write_all(tmp_path)[0].read_text()
    assert "- warning: results/faults_crash_cp4" in text
    assert "no result: results/faults_crash_cp4" in text
    assert "cut or no JSON at line 1 column 2" in text
    (tmp_path / RUN_FILE).unlink()
    assert "exit code unknown" in write_all(tmp_path)[0].read_text()


def test_records_from_before_a_field_existed_are_still_reported(tmp_path: Path) -> None:
    results = [maker() for maker in ALL]
    write_run(tmp_path, results)
    for item in results:
        file = result_path(tmp_path, item.id)
        data = json.loads(file.read_text())
        del data["scenario"]["published"]
        for attempt in data["attempts"]:
            del attempt["windows"]
        file.write_text(json.dumps(data))
    shown = CliRunner().invoke(report, [str(tmp_path)])
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[-1].startswith("exit code 4: ")
    assert "known defect: picks match chunk_local_window" in shown.stdout
    assert "kernel window" not in shown.stdout


def test_no_run_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError):
        write_all(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_command_prints_and_rebuilds(tmp_path: Path) -> None:
    write_run(tmp_path, [passing(), crash()])
    shown = CliRunner().invoke(report, [str(tmp_path)])
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[-1].startswith("exit code 4: ")
    for form, name in FORMATS.items():
        written = (tmp_path / name).read_text(encoding="utf-8")
        shown = CliRunner().invoke(report, [str(tmp_path), "--format", form])
        assert shown.exit_code == 0
        assert shown.stdout == written
    assert set(FORMATS.values()) == set(DOCUMENTS)


@pytest.mark.parametrize("made", [False, True])
def test_command_without_a_run_is_one_line_and_code_2(tmp_path: Path, made: bool) -> None:
    folder = tmp_path / "run"
    if made:
        folder.mkdir()
    shown = CliRunner().invoke(report, [str(folder)])
    assert shown.exit_code == 2
    assert shown.stdout == ""
    assert len(shown.stderr.splitlines()) == 1
    assert "expected" in shown.stderr


def test_a_folder_that_cannot_be_written_is_still_read_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path, [passing()])

    def refuse(source: object, target: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "replace", refuse)
    shown = CliRunner().invoke(report, [str(tmp_path)])
    assert shown.exit_code == 0
    assert shown.stdout.splitlines()[-1] == "exit code 0: all as expected or known"
    assert "the documents were not rebuilt" in shown.stderr
    assert not (tmp_path / MARKDOWN_FILE).exists()


def test_reports_need_no_torch_and_start_fast(tmp_path: Path) -> None:
    write_run(tmp_path, [passing()])
    code = (
        "import sys, pkgutil, importlib\n"
        "import reports\n"
        "for found in pkgutil.iter_modules(reports.__path__):\n"
        "    importlib.import_module(f'reports.{found.name}')\n"
        "from launch.report import report\n"
        "report([sys.argv[1]], standalone_mode=False)\n"
        "print([m for m in ('torch', 'numpy', 'megatron', 'cudnn', 'rich', 'pydantic')"
        " if m in sys.modules])\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "[]"
    assert (tmp_path / MARKDOWN_FILE).exists()
