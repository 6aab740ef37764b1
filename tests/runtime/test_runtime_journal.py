"""Journals: one whole line per write, readable after any kind of end."""

import json
import os
import signal
import subprocess
import sys

import pytest

from harness.record.evidence import ExceptionEvidence, NoteEvidence
from harness.record.phase import Phase
from harness.runtime.journal import EXCEPTION, Journal, PhaseTail, read_journal


def _written(path, status="ok"):
    journal = Journal(path, global_rank=3)
    journal.phase(Phase.START)
    journal.phase(Phase.LAYOUT)
    journal.evidence(NoteEvidence(topic="shim", text="none"))
    journal.fact("answer", 42)
    journal.close(status)


def test_content_comes_back(tmp_path):
    _written(tmp_path / "j")
    content = read_journal(tmp_path / "j", global_rank=3)
    assert [timing.phase for timing in content.phases] == [Phase.START, Phase.LAYOUT]
    assert content.phases[0].end_s == content.phases[1].begin_s
    assert content.phases[1].end_s == pytest.approx(content.last_s)
    assert content.of(NoteEvidence) == (NoteEvidence(topic="shim", text="none"),)
    assert content.entries[0].phase is Phase.LAYOUT
    assert content.facts == {"answer": 42}
    assert content.completed and content.pid == os.getpid() and content.num_broken == 0


def test_missing_journal_reads_as_empty(tmp_path):
    content = read_journal(tmp_path / "none", global_rank=0)
    assert content.phases == () and not content.completed and content.last_phase is None


@pytest.mark.parametrize("cut", [1, 10, 40])
def test_a_cut_last_line_is_counted_and_skipped(tmp_path, cut):
    _written(tmp_path / "j")
    data = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(data[:-cut])
    content = read_journal(tmp_path / "j", global_rank=3)
    assert content.num_broken == 1
    assert not content.completed
    assert content.last_phase is Phase.LAYOUT


def test_an_exception_is_the_last_word(tmp_path):
    journal = Journal(tmp_path / "j", global_rank=0)
    journal.phase(Phase.SCORE)
    error = ExceptionEvidence(type="ValueError", text="x", traceback="...", origin="build")
    journal.evidence(error)
    journal.close(EXCEPTION)
    content = read_journal(tmp_path / "j", global_rank=0)
    assert content.exception == error
    assert content.exception_s is not None
    assert not content.completed


def test_records_that_are_no_evidence_are_refused(tmp_path):
    journal = Journal(tmp_path / "j", global_rank=0)
    with pytest.raises(TypeError, match="no evidence kind"):
        journal.evidence("text")
    journal.close()


def test_what_was_written_before_sigkill_is_there(tmp_path):
    code = (
        "import os, signal, sys\n"
        "from harness.record.result import Phase\n"
        "from harness.runtime.journal import Journal\n"
        "journal = Journal(sys.argv[1], global_rank=0)\n"
        "journal.phase(Phase.SCORE)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "j")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_journal(tmp_path / "j", global_rank=0).last_phase is Phase.SCORE


def test_observers_see_a_phase_after_its_line_is_written(tmp_path):
    seen = []
    journal = Journal(tmp_path / "j", global_rank=0)

    def look(phase):
        lines = (tmp_path / "j").read_text().splitlines()
        seen.append((phase, json.loads(lines[-1])["phase"]))

    journal.observers.append(look)
    journal.phase(Phase.GATHER)
    journal.close()
    assert seen == [(Phase.GATHER, "gather")]


def test_tail_takes_in_whole_lines_only(tmp_path):
    tail = PhaseTail(tmp_path / "j")
    tail.refresh()
    assert tail.begins == []
    _written(tmp_path / "whole")
    data = (tmp_path / "whole").read_bytes()
    end = data.index(b"layout") + 3
    (tmp_path / "j").write_bytes(data[:end])
    tail.refresh()
    assert [phase for phase, _ in tail.begins] == [Phase.START]
    (tmp_path / "j").write_bytes(data)
    tail.refresh()
    tail.refresh()
    assert [phase for phase, _ in tail.begins] == [Phase.START, Phase.LAYOUT]
    assert tail.status == "ok"
