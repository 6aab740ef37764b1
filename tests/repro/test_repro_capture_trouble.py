"""The recorder where nothing can be written, and the versions that it tells."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from recorded_jobs import Job

from harness.repro.job.dsa_capture import versions


def run(folder: Path) -> None:
    job = Job(folder=folder, settings={"ring": 1})
    for lengths in ((64,), (32,), (16,)):
        job.forward(lengths)
    job.recorder.close()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere"])
def test_a_folder_that_cannot_be_written_is_one_line(tmp_path, capfd, place):
    (tmp_path / "file").write_text("")
    folder = tmp_path / place
    run(folder)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"dsa_capture: {folder}: ")
    assert line.endswith("what this process records is lost or has gaps")


def test_a_full_disk_is_one_line(tmp_path, capfd, monkeypatch):
    def write(_descriptor, _data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    run(tmp_path / "full")
    assert capfd.readouterr().err.count("No space left on device") == 1
    monkeypatch.undo()
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:9]))
    run(tmp_path / "nearly")
    assert capfd.readouterr().err.count("\n") == 1


def test_an_error_at_the_end_of_a_file_disturbs_nothing(tmp_path, capfd, monkeypatch):
    job = Job(folder=tmp_path)
    job.forward((64,))
    real, own = os.close, job.recorder._files._descriptor

    def close(descriptor):
        real(descriptor)
        if descriptor == own:
            raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(os, "close", close)
    job.recorder.close()
    monkeypatch.undo()
    assert "Disk quota exceeded" in capfd.readouterr().err


@pytest.mark.parametrize("stream", [None, "closed"])
def test_a_job_without_standard_error_goes_on(tmp_path, monkeypatch, stream):
    if stream == "closed":
        stream = open(tmp_path / "log", "w")  # noqa: SIM115 (closed at once)
        stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    (tmp_path / "file").write_text("")
    run(tmp_path / "file")


def test_a_job_that_can_write_is_told_nothing(tmp_path, capfd):
    run(tmp_path)
    assert capfd.readouterr().err == ""


def megatron(monkeypatch, place: Path | None, version: str | None) -> str | None:
    found = {} if version is None else {"__version__": version}
    core = SimpleNamespace(**found, **({} if place is None else {"__file__": str(place)}))
    monkeypatch.setitem(sys.modules, "megatron.core", core)
    return versions.version_facts()["megatron_core"]


def source(folder: Path) -> Path:
    place = folder / "megatron" / "core" / "__init__.py"
    place.parent.mkdir(parents=True)
    place.write_text("")
    return place


def test_an_installed_megatron_has_no_commit_of_the_repository_around_it(monkeypatch):
    found = importlib.metadata.distribution("megatron-core")
    place = Path(str(found.locate_file("megatron/core/__init__.py")))
    assert place.exists()
    assert megatron(monkeypatch, place, f"{found.version}+7e853ce") == found.version


def test_a_checkout_has_its_own_commit_alone(tmp_path, monkeypatch):
    own = source(tmp_path / "checkout")
    (tmp_path / "checkout" / ".git").mkdir()
    assert megatron(monkeypatch, own, "0.20.0rc0+abc1234") == "0.20.0rc0+abc1234"
    # A copy without its repository is told the commit of whatever lies around it.
    copy = source(tmp_path / "copy")
    assert megatron(monkeypatch, copy, "0.20.0rc0+abc1234") == "0.20.0rc0"
    assert megatron(monkeypatch, copy, "0.20.0rc0") == "0.20.0rc0"


def test_a_megatron_that_tells_no_version_or_no_place(monkeypatch):
    assert megatron(monkeypatch, None, None) == importlib.metadata.version("megatron-core")
    assert megatron(monkeypatch, None, "0.19.2") == "0.19.2"
