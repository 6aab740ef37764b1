from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_examples import example

from harness.record.files import (
    RecordFileError,
    read_record,
    result_path,
    safe_name,
    write_record,
    write_text,
)
from harness.record.result import RankOutcome, RunRecord
from harness.record.selection import OverlapStats

IDS = st.one_of(
    st.text(max_size=300),
    st.text(alphabet="aA._-~/[]", max_size=12),
)


@settings(max_examples=300, deadline=None)
@given(IDS, IDS)
def test_names_are_safe_and_unequal_ids_get_unequal_names(first: str, second: str) -> None:
    names = safe_name(first), safe_name(second)
    for name in names:
        assert "/" not in name
        assert not name.startswith(".")
        assert name.isascii()
        assert 0 < len(name) < 140
    # Some file systems do not tell upper from lower case.
    assert (names[0].lower() == names[1].lower()) == (first == second)


@pytest.mark.parametrize("name", ["zigzag", "a.b-c_d", "0"])
def test_plain_ids_stay(name: str) -> None:
    assert safe_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "/etc/passwd", "a/b", "A", "\ud800", "a\0b"]
)
def test_odd_ids_get_a_hash_and_stay_in_the_folder(name: str, tmp_path: Path) -> None:
    assert "~" in safe_name(name)
    path = result_path(tmp_path, name)
    assert path.resolve().parent == (tmp_path / "results").resolve()
    assert path.suffix == ".json"


def test_a_plain_id_cannot_take_the_name_of_a_hashed_one() -> None:
    assert safe_name(safe_name("a/b")) != safe_name("a/b")


def test_records_come_back(tmp_path: Path) -> None:
    record = example(RunRecord)
    write_record(tmp_path / "new" / "run.json", record)
    assert read_record(tmp_path / "new" / "run.json", RunRecord) == record
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["run.json"]


def test_lone_surrogates_come_back(tmp_path: Path) -> None:
    record = example(RankOutcome, last_line="cut \ud800 here \udc80")
    write_record(tmp_path / "r.json", record)
    assert read_record(tmp_path / "r.json", RankOutcome) == record
    write_text(tmp_path / "t.md", "\ud800")
    assert (tmp_path / "t.md").read_text() == "\\ud800"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    write_text(path, "old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    monkeypatch.undo()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_text(path, "new")
    assert path.read_text() == "new"


def test_a_record_without_json_form_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no JSON form"):
        write_record(tmp_path / "r.json", {"a": object()})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"rows": 1', "cut or no JSON at line 1"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1]", "not a OverlapStats: .*expected an object"),
        (b'{"rows": 1, "row": 2}', "no field 'row'"),
        (b'{"rows": "1"}', r"\$\.rows: expected int"),
        (b'{"due": 1}', "rows"),
        (b'{"rows": 1, "schema_version": 2}', "expected schema_version 1, found 2"),
        (b"[" * 100_000, "no readable JSON|cut or no JSON|nested too deeply"),
        (b"1" * 10_000, "no readable JSON"),
    ],
)
def test_broken_files_name_themselves(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b'{"rows": 1}')
    assert read_record(path, OverlapStats) == OverlapStats(rows=1)
    path.write_bytes(content)
    with pytest.raises(RecordFileError, match=f"x.json: .*({message})"):
        read_record(path, OverlapStats)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(RecordFileError, match=r"no\.json: cannot be read: No such file"):
        read_record(tmp_path / "no.json", OverlapStats)
    with pytest.raises(RecordFileError, match="cannot be read: Is a directory"):
        read_record(tmp_path, OverlapStats)
