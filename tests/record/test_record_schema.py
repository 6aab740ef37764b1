"""The kept JSON schema is current, and agrees with the codec on what is a record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from record_examples import example

from harness.record.codec import DecodeError, from_jsonable, to_jsonable
from harness.record.generate import SCHEMA_PATH, is_current, schema_text
from harness.record.result import RunRecord, ScenarioResult


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = json.loads(SCHEMA_PATH.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_kept_schema_is_current(tmp_path: Path) -> None:
    assert is_current(), "run python -m harness.record.generate"
    stale = tmp_path / "record.schema.json"
    stale.write_text(schema_text().replace("worst_rows", "worst_lines"), encoding="utf-8")
    assert not is_current(stale)
    assert not is_current(tmp_path / "absent.json")


@pytest.mark.parametrize("cls", [RunRecord, ScenarioResult])
def test_records_meet_the_schema(cls: type, validator: Draft202012Validator) -> None:
    validator.validate(to_jsonable(example(cls)))


def test_non_finite_numbers_meet_the_schema(validator: Draft202012Validator) -> None:
    data = to_jsonable(example(ScenarioResult))
    attempt = data["attempts"][0]
    for spelled in ("nan", "inf", "-inf"):
        attempt["values"][0]["max_abs_diff"] = spelled
        validator.validate(data)
    attempt["values"][0]["max_abs_diff"] = "NaN"
    assert not validator.is_valid(data)


def _unknown_key(data: dict[str, Any]) -> None:
    data["attempts"][0]["ranks"][0]["colour"] = "red"


def _wrong_type(data: dict[str, Any]) -> None:
    data["attempts"][0]["selections"][0]["total"]["rows"] = "64"


def _no_such_verdict(data: dict[str, Any]) -> None:
    data["attempts"][0]["verdict"] = "green"


def _missing(data: dict[str, Any]) -> None:
    del data["content_hash"]


def _range_of_three(data: dict[str, Any]) -> None:
    data["attempts"][0]["ranks"][0]["exception"]["address_fault"]["allowed"] = [0, 1, 2]


@pytest.mark.parametrize(
    "spoil", [_unknown_key, _wrong_type, _no_such_verdict, _missing, _range_of_three]
)
def test_schema_and_codec_refuse_the_same(spoil: Any, validator: Draft202012Validator) -> None:
    data = to_jsonable(example(ScenarioResult))
    assert validator.is_valid(data)
    from_jsonable(ScenarioResult, data)
    spoil(data)
    assert not validator.is_valid(data)
    with pytest.raises(DecodeError):
        from_jsonable(ScenarioResult, data)


def test_other_schema_versions_do_not_meet_the_schema(validator: Draft202012Validator) -> None:
    data = to_jsonable(example(RunRecord))
    assert validator.is_valid(data)
    data["schema_version"] = 2
    assert not validator.is_valid(data)


def test_records_need_the_standard_library_only() -> None:
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "import harness.record.codec, harness.record.evidence, harness.record.files\n"
        "import harness.record.result, harness.record.verdict, harness.record.environment\n"
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(tops - set(sys.stdlib_module_names)))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['harness']"
