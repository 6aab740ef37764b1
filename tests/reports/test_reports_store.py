from __future__ import annotations

from pathlib import Path

import pytest
from sample_records import crash, hostile, not_run, passing, write_run

from harness.record.files import RUN_FILE, result_path
from reports.store import RunFolderError, load_run


def test_a_whole_run_comes_back_in_its_order(tmp_path: Path) -> None:
    results = [not_run(), passing(), crash(), hostile()]
    run = load_run(write_run(tmp_path, results))
    assert run.record is not None
    assert list(run.results) == results
    assert run.missing == run.warnings == ()


def test_missing_results_are_listed_without_a_warning(tmp_path: Path) -> None:
    results = [passing(), crash()]
    write_run(tmp_path, results, exit_code=None)
    result_path(tmp_path, results[1].id).unlink()
    run = load_run(tmp_path)
    assert run.missing == (results[1].id,)
    assert run.warnings == ()


def test_a_cut_result_is_a_warning_and_the_rest_is_read(tmp_path: Path) -> None:
    results = [passing(), crash()]
    write_run(tmp_path, results)
    path = result_path(tmp_path, results[0].id)
    path.write_text(path.read_text()[:500])
    run = load_run(tmp_path)
    assert [result.id for result in run.results] == [results[1].id]
    assert run.missing == (results[0].id,)
    assert len(run.warnings) == 1
    assert run.warnings[0].startswith(f"results/{path.name}: cut or no JSON")


def test_without_run_json_the_results_still_count(tmp_path: Path) -> None:
    write_run(tmp_path, [passing()])
    (tmp_path / RUN_FILE).unlink()
    run = load_run(tmp_path)
    assert run.record is None
    assert len(run.results) == 1
    assert run.warnings == ("run.json: cannot be read: No such file or directory",)


@pytest.mark.parametrize("name", ["aaa.json", "zzz.json"])
def test_a_copied_result_does_not_count_twice(tmp_path: Path, name: str) -> None:
    write_run(tmp_path, [passing()])
    source = result_path(tmp_path, passing().id)
    copied = source.with_name(name)
    copied.write_text(source.read_text().replace('"summary": "', '"summary": "copied '))
    run = load_run(tmp_path)
    assert run.results == (passing(),)
    assert len(run.warnings) == 1
    assert f"{name}: holds quickstart/zigzag[cp4]" in run.warnings[0]
    source.unlink()
    assert [result.summary[:6] for result in load_run(tmp_path).results] == ["copied"]


def test_a_result_that_the_run_does_not_list_is_told(tmp_path: Path) -> None:
    write_run(tmp_path, [passing(), crash()], scenario_ids=(passing().id,))
    run = load_run(tmp_path)
    assert [result.id for result in run.results] == [passing().id, crash().id]
    assert run.warnings == (f"{crash().id}: has a result, but the run does not list it",)


def test_half_written_files_are_not_results(tmp_path: Path) -> None:
    write_run(tmp_path, [passing()])
    (tmp_path / "results" / ".x.json.12.ab.tmp").write_text("{")
    (tmp_path / "results" / ".hidden.json").write_text("{")
    assert load_run(tmp_path).warnings == ()


def test_no_run_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="expected a run folder, found nothing of that name"):
        load_run(tmp_path / "absent")
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="expected a run folder, found a file"):
        load_run(tmp_path / "file")
    with pytest.raises(RunFolderError, match=r"expected run\.json or results/\*\.json"):
        load_run(tmp_path)
    (tmp_path / RUN_FILE).write_text("")
    assert load_run(tmp_path).record is None
