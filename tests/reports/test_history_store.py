"""The store: two writers lose nothing, a cut file is read up to the cut, the index is rebuilt."""

from __future__ import annotations

import multiprocessing
import sqlite3
from pathlib import Path

import pytest
from history_samples import entry, night

from reports.history.index import Index
from reports.history.store import StoreError, append, night_files, read_night
from reports.history.telling import tell_night


def test_a_night_is_read_back(tmp_path: Path) -> None:
    made = night(0, entry("a"), entry("b"))
    assert read_night(append(tmp_path, made)).whole == made


def write_nights(store: str, name: str, number: int) -> None:
    for day in range(number):
        append(Path(store), night(day, entry(f"{name}-{day}")))


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=write_nights, args=(str(tmp_path), name, 25)) for name in ("a", "b")
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    found = {e.id for path in night_files(tmp_path) for e in read_night(path).whole.entries}  # type: ignore[union-attr]
    assert found == {f"{name}-{day}" for name in ("a", "b") for day in range(25)}


def test_a_cut_file_is_read_up_to_the_cut(tmp_path: Path) -> None:
    path = append(tmp_path, night(0, entry("a"), entry("b"), entry("c")))
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b'"id": "c"')])
    read = read_night(path)
    assert [e.id for e in read.whole.entries] == ["a", "b"]  # type: ignore[union-attr]
    assert "cut here" in read.warnings[0]
    assert f"{path}:4" in read.warnings[0]
    assert not read.whole.good  # type: ignore[union-attr]
    with Index(tmp_path, tmp_path / "index") as index:
        assert index.warnings == list(read.warnings)
    with Index(tmp_path, tmp_path / "index") as index:  # told again, from the index
        assert index.warnings == list(read.warnings)


def test_a_file_of_another_version_is_told_and_left_out(tmp_path: Path) -> None:
    path = append(tmp_path, night(0, entry()))
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 9'))
    assert read_night(path).night is None
    assert "schema_version" in read_night(path).warnings[0]


def test_the_index_follows_the_store(tmp_path: Path) -> None:
    index_path = tmp_path / "index.sqlite"
    append(tmp_path, night(0, entry("a")))
    with Index(tmp_path, index_path) as index:
        assert len(index.heads()) == 1
    late = append(tmp_path, night(1, entry("a", metrics={"time_s": 2.0})))
    with Index(tmp_path, index_path) as index:
        numbers = [number for number, _ in index.heads()]
        assert [value for _, value in index.series(numbers)["a"]["time_s"]] == [1.0, 2.0]
    late.unlink()
    with Index(tmp_path, index_path) as index:
        assert len(index.heads()) == 1


def test_a_broken_index_is_rebuilt(tmp_path: Path) -> None:
    index_path = tmp_path / "index.sqlite"
    append(tmp_path, night(0, entry("a")))
    index_path.write_bytes(b"this is no database" * 100)
    with Index(tmp_path, index_path) as index:
        assert len(index.heads()) == 1
    with pytest.raises(sqlite3.DatabaseError):
        sqlite3.connect(tmp_path / "nights").execute("SELECT 1")


def test_a_store_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(StoreError, match="expected a folder"):
        night_files(tmp_path / "store")
    with pytest.raises(StoreError, match="cannot be written"):
        append(tmp_path / "store", night(0, entry()))


def test_nights_of_another_key_are_no_measure(tmp_path: Path) -> None:
    from history_samples import key

    for day in range(10):
        append(tmp_path, night(day, entry(metrics={"time_s": 1.0}), key=key(torch="1.0")))
    tonight = night(10, entry(metrics={"time_s": 99.0}))
    append(tmp_path, tonight)
    story = tell_night(tmp_path, tonight, index_path=tmp_path / "i").story
    assert not story.regressions
    assert not story.like_with_like
    assert story.moved["torch"] == ("1.0", "2.13.0")


def test_an_index_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    append(tmp_path, night(0, entry("a")))
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="XDG_CACHE_HOME"):
        Index(tmp_path, tmp_path / "file" / "index.sqlite")
