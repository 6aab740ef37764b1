"""A full disk: one line, nothing half written, and the run can be finished later."""

import contextlib
import errno
import os
import signal
import subprocess

import pytest
from run_session import ROOT, Session

from harness.record.result import RankOutcome
from harness.runtime import child, ends, journal
from harness.runtime.journal import Journal
from harness.runtime.storage import (
    STORAGE_EXIT,
    StorageError,
    check_stored,
    is_storage,
    storage_problem,
)
from reports.store import load_run

ENGINE = ("--engine", "gated_engine:execute")
LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "make room on the file system that holds --out"),
        (errno.EDQUOT, "make room on the file system that holds --out"),
        (errno.EROFS, "make the run folder writable again"),
        (errno.EACCES, "make the run folder writable again"),
        (errno.EIO, "see that the file system that holds --out works"),
    ],
)
def test_each_refusal_of_a_file_system_has_its_remedy(number, remedy):
    problem = OSError(number, os.strerror(number), "/runs/x/run.json")
    text = storage_problem(problem)
    assert text.startswith(f"/runs/x/run.json: {os.strerror(number)}; {remedy}, then finish")
    assert len(text.splitlines()) == 1


def test_other_errors_are_not_the_file_systems():
    assert storage_problem(OSError(errno.ECONNREFUSED, "refused")) is None
    assert not is_storage(ConnectionResetError(errno.ECONNRESET, "reset"))


def test_a_line_that_is_cut_is_a_full_disk(tmp_path, monkeypatch):
    made = Journal(tmp_path / "j", global_rank=0)
    monkeypatch.setattr(journal.os, "write", lambda descriptor, data: len(data) - 1)
    with pytest.raises(StorageError, match="is the disk full"):
        made.phase(journal.Phase.SCORE)


def test_a_rank_that_cannot_write_ends_with_a_status_of_its_own(monkeypatch):
    ended = []
    monkeypatch.setattr(child.os, "_exit", ended.append)
    with pytest.raises(ValueError, match="no disk"), child._leaving_when_full():
        raise ValueError("no disk")
    assert ended == []
    with child._leaving_when_full():
        raise OSError(errno.ENOSPC, "No space left on device")
    assert ended == [STORAGE_EXIT]
    check_stored([RankOutcome(global_rank=0, exit_code=0)], ROOT)
    with pytest.raises(StorageError, match="rank 1 could not write its journal; make room"):
        check_stored([RankOutcome(global_rank=1, exit_code=STORAGE_EXIT)], ROOT)


def test_the_leaders_journal_takes_whole_lines_or_fails(tmp_path, monkeypatch):
    begin = ends.AttemptBegin(started_at="", isolation="scenario", num_ranks=1)
    ends.append(tmp_path, begin)
    assert ends.read_ends(tmp_path).begin == begin
    real = os.write
    answers = iter([5])

    def full_after_five(descriptor, data):
        for count in answers:
            return real(descriptor, data[:count])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(ends.os, "write", full_after_five)
    with pytest.raises(OSError, match="No space left"):
        ends.append(tmp_path, begin)
    monkeypatch.undo()
    assert ends.read_ends(tmp_path).begin == begin


@pytest.fixture
def small_disk(tmp_path):
    """The folder ``runs`` on a file system of one megabyte."""
    place = tmp_path / "runs"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(place)]
    if subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def _fill(path):
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


@pytest.mark.ranks
@pytest.mark.timeout(600)
def test_a_disk_that_fills_up_costs_one_line_and_the_run_can_be_finished(tmp_path, small_disk):
    session = Session(tmp_path)
    try:
        paths = session.scenarios("first", "gated", "third")
        process = session.start(*LAUNCH, str(ROOT / "launch/run.py"), *paths, *ENGINE)
        session.wait_for_phase("layout", process, scenario="tiny_gated")
        ballast = small_disk / "ballast"
        _fill(ballast)
        (tmp_path / "gate").touch()
        code, output = session.finish(process)
        assert code == 1
        # torchrun tells of the failed worker in a table of its own.
        said = [line for line in output.splitlines() if "--resume" in line or "No space" in line]
        assert len(said) == 1, output
        assert "make room on the file system that holds --out" in said[0]
        assert "Traceback" not in output.partition("torch/distributed")[0]
        assert list(small_disk.rglob("*.tmp")) == []
        (folder,) = (path for path in small_disk.iterdir() if path.is_dir())
        assert [result.id for result in load_run(folder).results] == ["tiny/first"]

        ballast.unlink()
        code, output = session.finish(session.command("run", "--resume", str(folder)))
        assert code == 0, output
        results = {result.id: result for result in load_run(folder).results}
        assert [str(result.verdict) for result in results.values()] == ["pass"] * 3
        assert results["tiny/gated"].attempts[0].cut_short is not None
        assert len(results["tiny/third"].attempts) == 1
    finally:
        for pid in session.processes():
            os.kill(pid, signal.SIGKILL)
