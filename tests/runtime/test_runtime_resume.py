"""A run whose processes were all killed: reported from its files, finished with --resume."""

import os
import signal

import pytest
from run_session import Session

from harness.record.codec import to_jsonable
from reports.store import load_run
from reports.summary import summarise_stored

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900)]

NAMES = ("first", "gated", "third", "fourth")
ENGINE = ("--engine", "gated_engine:execute")
LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture
def session(tmp_path):
    made = Session(tmp_path)
    yield made
    for pid in made.processes():
        os.kill(pid, signal.SIGKILL)


def _start(session, *words):
    from run_session import ROOT

    paths = session.scenarios(*NAMES)
    return session.start(*LAUNCH, str(ROOT / "launch/run.py"), *paths, *ENGINE, *words)


def _kill_in_the_middle(session, *words):
    process = _start(session, *words)
    session.wait_for_phase("layout", process, scenario="tiny_gated")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    session.assert_gone_within(5.0)


def _without_times(result):
    """Everything that a report shows of a result, but for attempts and times."""
    data = to_jsonable(result)
    for gone in ("attempts", "decides", "rerun"):
        del data[gone]
    last = to_jsonable(result.last)
    for gone in ("number", "started_at", "duration_s", "ranks", "facts"):
        last.pop(gone, None)
    return data | {"last": last}


def _judged(folder):
    summary = summarise_stored(load_run(folder))
    results = {view.result.id: _without_times(view.result) for view in summary.scenarios}
    return results, summary.outcomes, summary.verdicts, summary.missing, summary.exit_line


def test_a_killed_run_is_reported_from_its_files_and_resumed_to_the_same_end(session, tmp_path):
    _kill_in_the_middle(session)
    folder = session.run_folder()
    assert set(session.results()) == {"tiny/first"}

    code, output = session.finish(session.command("report", str(folder)))
    assert code == 0, output
    assert session.record().state == "killed"
    results = session.results()
    assert set(results) == {"tiny/first", "tiny/gated"}
    gated = results["tiny/gated"].last
    assert (str(gated.verdict), gated.cut_short) == (
        "infrastructure",
        "the run was killed while it ran",
    )
    assert [rank.last_phase for rank in gated.ranks] == ["layout", "layout"]
    text = (folder / "report.md").read_text()
    assert "the run was killed" in text
    for missing in ("tiny/third", "tiny/fourth"):
        assert missing in text

    (tmp_path / "gate").touch()
    code, output = session.finish(session.command("run", "--resume", str(folder)))
    assert code == 0, output
    assert "[1/4]" not in output, "what is done stays done"
    results = session.results()
    assert [len(results[f"tiny/{name}"].attempts) for name in NAMES] == [1, 2, 1, 1]
    assert str(results["tiny/gated"].verdict) == "pass"
    record = session.record()
    assert (record.exit_code, record.state) == (0, "finished")
    assert any("3 of 4 scenarios to run" in note for note in record.notes)
    resumed = _judged(folder)

    other = Session(tmp_path / "undisturbed")
    other.folder.mkdir()
    (other.folder / "gate").touch()
    process = _start(other)
    assert other.finish(process)[0] == 0
    undisturbed = _judged(other.run_folder())
    for result in undisturbed[0].values():
        result["file"] = result["file"].replace("/undisturbed/", "/")
    assert resumed == undisturbed

    code, output = session.finish(session.command("run", "--resume", str(folder)))
    assert code == 0, output
    assert [len(r.attempts) for r in session.results().values()] == [1, 2, 1, 1]


def test_what_is_in_the_way_of_a_resume_is_said_in_one_line(session, tmp_path):
    process = _start(session)
    session.wait_for_phase("layout", process, scenario="tiny_gated")
    folder = session.run_folder()
    second = Session(tmp_path)
    second.marker, second.output = session.marker, tmp_path / "second.txt"
    code, output = second.finish(second.command("run", "--resume", str(folder)))
    assert code == 2
    assert "expected a run that nobody writes, found that process" in output
    assert len(output.splitlines()) == 1
    code, output = second.finish(second.command("status", str(folder)))
    assert (code, "still running (process" in output) == (3, True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    session.assert_gone_within(5.0)
    words = ("run", "--ranks", "1", "--resume", str(folder))
    code, output = second.finish(second.command(*words))
    assert code == 2
    assert [line.split(" was planned")[0] for line in output.splitlines()] == [
        "tiny/gated",
        "tiny/third",
        "tiny/fourth",
    ]
    assert "start it with --nproc-per-node 2" in output


def test_what_a_budget_left_no_time_for_is_resumed(session):
    """One second is over before the first scenario can start: the imports alone take longer."""
    code, output = session.finish(
        session.dsa_harness(*session.scenarios("first", "second"), "--budget", "1")
    )
    assert code == 5, output
    for result in session.results().values():
        assert result.last.missing_capability == "time left in the budget of 1 s"
        assert result.last.cut_short is not None
    run = str(session.run_folder())
    code, output = session.finish(session.command("run", "--resume", run))
    assert code == 0, output
    assert {str(r.verdict) for r in session.results().values()} == {"pass"}
