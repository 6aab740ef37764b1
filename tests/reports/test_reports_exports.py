"""Exports: the formats of other tools, read back as those tools read them."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from sample_parts import HOSTILE, attempt, rank, result
from sample_records import crash, fixed, passing, released_defect, run_record, write_run

from harness.record.evidence import NoteEvidence
from harness.record.result import ScenarioResult
from harness.record.verdict import Outcome, Verdict
from launch.export import export
from reports.exports.github import annotation_lines, job_summary
from reports.exports.golden_values import (
    DETERMINISTIC,
    LOSS_TOPIC,
    GoldenError,
    golden_values,
    mismatches,
    read_golden,
)
from reports.exports.pytorch_benchmark import records
from reports.summary import summarise

COMMAND = re.compile(
    r"::(?P<level>error|notice) file=(?P<file>[^,:]*),line=(?P<line>\d+),title=(?P<title>[^,:]*)"
    r"::(?P<text>.*)"
)


def with_losses(*losses: float) -> ScenarioResult:
    """As two ranks journal them: all of the first rank's, then all of the second's."""
    notes = tuple(
        NoteEvidence(topic=LOSS_TOPIC, text=f"{index}: {loss:.6f}")
        for _rank in range(2)
        for index, loss in enumerate(losses)
    )
    made = replace(attempt(Verdict.PASS), notes=notes, ranks=(rank(0), rank(1)))
    return result("loss", [made], Outcome.EXPECTED)


def test_annotations_point_at_the_scenario_file() -> None:
    results = [passing(), crash(), released_defect(), fixed()]
    lines = list(annotation_lines(summarise(run_record(results), results)))
    found = [COMMAND.fullmatch(line) for line in lines]
    assert all(found)
    assert [match["level"] for match in found if match] == ["error", "error", "notice"]


def test_annotations_cannot_be_broken_out_of() -> None:
    hostile = replace(crash(HOSTILE), explanation="100% ::error file=x::\nnext", file="a,b:c:7")
    (line,) = annotation_lines(summarise(run_record([hostile]), [hostile]))
    match = COMMAND.fullmatch(line)
    assert match is not None
    assert match["file"] == "a%2Cb%3Ac"
    assert match["line"] == "7"
    assert "100%25" in match["text"]
    assert "\n" not in line


def test_a_job_summary_stays_below_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [passing(f"s{i}") for i in range(50)]
    summary = summarise(run_record(results), results)
    monkeypatch.setattr("reports.exports.github.MAX_SUMMARY_BYTES", 1000)
    text = job_summary(summary)
    assert len(text.encode()) < 1100
    assert "The rest was cut" in text


def test_benchmark_records_have_the_fields_of_version_three() -> None:
    results = (passing(), released_defect())
    found = records(run_record(results), results)
    assert {item["metric"]["name"] for item in found} >= {"overlap", "time_s", "pass"}
    for item in found:
        assert item["schema_version"] == "v3"
        assert isinstance(item["metric"]["benchmark_values"], list)
        assert item["benchmark"]["name"] == "dsa-harness"
        assert item["runners"][0]["extra_info"]["ranks"] == 4
        assert item["timestamp"] > 1_600_000_000
    json.dumps(found, allow_nan=False)


def test_golden_values_are_written_and_read_back(tmp_path: Path) -> None:
    made = with_losses(10.5, 10.4)
    values = golden_values(made)
    assert values["lm loss"] == {
        "start_step": 1,
        "end_step": 2,
        "step_interval": 1,
        "values": {"1": 10.5, "2": 10.4},
    }
    path = tmp_path / "golden.json"
    path.write_text(json.dumps(values))
    assert mismatches(read_golden(path), made, tolerance=DETERMINISTIC) == ()


@pytest.mark.parametrize(("loss", "exact", "differs"), [
    (10.5, True, False), (10.6, True, True), (10.6, False, False), (12.0, False, True),
])  # fmt: skip
def test_a_moved_loss_is_told_by_the_tolerance(loss: float, exact: bool, differs: bool) -> None:
    golden = {"lm loss": {"1": 10.5}}
    tolerance = {"tolerance": DETERMINISTIC} if exact else {}
    assert bool(mismatches(golden, with_losses(loss), **tolerance)) is differs


def test_a_missing_step_and_nan_are_differences() -> None:
    assert mismatches({"lm loss": {"1": 10.5, "2": 10.5}}, with_losses(10.5))
    assert mismatches({"lm loss": {"1": float("nan")}}, with_losses(10.5))
    assert not mismatches({"lm loss": {"1": float("nan")}}, with_losses(float("nan")))


@pytest.mark.parametrize("text", ["[]", "{", '{"a": {}}', '{"a": {"values": {"1": "x"}}}'])
def test_a_file_that_holds_none_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "golden.json"
    path.write_text(text)
    with pytest.raises(GoldenError, match=r"golden\.json"):
        read_golden(path)


def test_command_writes_and_checks(tmp_path: Path) -> None:
    run = str(write_run(tmp_path / "run", [with_losses(10.5)]))
    golden = tmp_path / "golden"
    runner = CliRunner()

    def invoke(*words: str) -> object:
        return runner.invoke(export, [run, *words], standalone_mode=False).return_value

    assert invoke("--to", "megatron-golden", "--out", str(golden)) == 0
    assert invoke("--to", "megatron-golden", "--against", str(golden), "--exact") == 0
    (file,) = golden.glob("*.json")
    file.write_text(file.read_text().replace("10.5", "20.5"))
    assert invoke("--to", "megatron-golden", "--against", str(golden)) == 1
    for form in ("github-summary", "github-annotations", "pytorch-benchmark"):
        out = tmp_path / form
        assert invoke("--to", form, "--out", str(out)) == 0
        assert out.exists()


def test_the_summary_goes_where_the_runner_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(write_run(tmp_path / "run", [passing()]))
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    CliRunner().invoke(export, [run, "--to", "github-summary"], standalone_mode=False)
    assert "zigzag" in (tmp_path / "summary.md").read_text()
