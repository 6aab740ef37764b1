"""``summary.json`` meets its published schema and says what the other documents say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator, ValidationError
from sample_records import ALL, crash, hostile, passing, run_record, write_run

from harness.record.codec import loads
from harness.record.generate import SUMMARY_SCHEMA_PATH, is_current, summary_schema_text
from harness.record.result import ScenarioResult
from harness.record.summary import RunSummaryDocument
from reports.machine import summary_text
from reports.render import DOCUMENTS, SUMMARY_FILE, write_all
from reports.summary import summarise


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json.loads(SUMMARY_SCHEMA_PATH.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def text_of(*results: ScenarioResult, **changes: object) -> str:
    return summary_text(summarise(run_record(results, **changes), results))


def test_kept_schema_is_current() -> None:
    text = summary_schema_text()
    assert is_current(SUMMARY_SCHEMA_PATH, text), "run python -m harness.record.generate"
    assert not is_current(SUMMARY_SCHEMA_PATH, text.replace("exit_code", "code"))


@pytest.mark.parametrize("maker", ALL)
def test_every_run_meets_the_schema_and_reads_back(
    maker: Callable[[], ScenarioResult], validator: Draft202012Validator
) -> None:
    text = text_of(maker())
    validator.validate(json.loads(text))
    if maker is not hostile:
        assert loads(RunSummaryDocument, text).scenarios[0].id == maker().id


def test_a_run_that_is_not_over_and_an_empty_one(validator: Draft202012Validator) -> None:
    for text in (
        text_of(passing(), exit_code=None, finished_at=None, state="killed"),
        text_of(),
        summary_text(summarise(None, [])),
    ):
        validator.validate(json.loads(text))
    assert json.loads(text_of(passing(), exit_code=None, state="killed"))["exit_code"] is None


def test_the_schema_can_refuse(validator: Draft202012Validator) -> None:
    data = json.loads(text_of(crash()))
    for change in (
        {"summary_version": 2},
        {"colour": "red"},
        {"exit_code": "4"},
        {"outcomes": {"expected": "one"}},
    ):
        with pytest.raises(ValidationError):
            validator.validate({**data, **change})
    del data["exit_line"]
    with pytest.raises(ValidationError):
        validator.validate(data)


def test_what_a_script_needs_is_there(tmp_path: Path) -> None:
    run = write_run(tmp_path, [passing(), crash()])
    write_all(run)
    found = loads(RunSummaryDocument, (run / SUMMARY_FILE).read_text(encoding="utf-8"))
    assert found.exit_code == 4
    assert found.outcomes == {"unexpected": 1, "expected": 1}
    assert [item.kind for item in found.actions] == ["unexpected fault"]
    worst, good = found.scenarios
    assert (worst.id, worst.verdict) == (crash().id, "crash")
    assert worst.reason == "global_rank 2 in phase score: ended by signal SIGSEGV"
    assert worst.overlap is None
    assert good.reason == ""
    assert (good.overlap, good.attempts) == (1.0, 1)
    assert (run / worst.record).is_file()
    assert {*found.documents, SUMMARY_FILE} == set(DOCUMENTS)
    assert all((run / name).is_file() for name in found.documents)
