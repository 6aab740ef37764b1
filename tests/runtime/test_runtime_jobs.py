"""Runs with --jobs and --repeat: the results of a serial run, and a fault that comes and goes."""

import os
import signal

import pytest
from run_session import Session

from harness.record.codec import to_jsonable
from reports.store import load_run

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(900)]

NAMES = ("first", "flaky", "third", "both")
WORDS = ("run", "--ranks", "2", "--engine", "flaky_engine:execute", "--repeat", "3")


@pytest.fixture
def session(tmp_path):
    made = Session(tmp_path)
    yield made
    for pid in made.processes():
        os.kill(pid, signal.SIGKILL)


def _scenarios(session):
    """Three scenarios of one rank, and one that takes both."""
    paths = session.scenarios(*NAMES)
    for path in paths[:3]:
        with open(path) as file:
            text = file.read().replace("_size: 2", "_size: 2, cp_ranks: [0]")
            text = text.replace("level: attention", "level: scorer")
        with open(path, "w") as file:
            file.write(text)
    return paths


TIMES = frozenset(
    (
        *("started_at", "duration_s", "pid", "ended_s", "begin_s", "end_s", "time_s", "last_line"),
        *("peak_rss_bytes", "text", "rerun", "stacks"),
    )
)


def _without_times(value):
    if isinstance(value, dict):
        return {k: _without_times(v) for k, v in value.items() if k not in TIMES}
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def _results(session, name):
    (folder,) = (session.folder / name).iterdir()
    return {r.id: r for r in load_run(folder).results}


@pytest.mark.slow
def test_side_by_side_gives_what_a_serial_run_gives(session):
    paths = _scenarios(session)
    for name, words in (("serial", ()), ("jobs", ("--jobs", "auto"))):
        command = session.command(*WORDS, *words, "--out", name, "--name", "n", *paths)
        code, output = session.finish(command)
        assert code == 4, output
        lines = [line for line in output.splitlines() if line.startswith("[")]
        assert len(lines) == 12, "one line for each attempt"
        assert all("of 3, isolation scenario" in line for line in lines)
    serial, jobs = _results(session, "serial"), _results(session, "jobs")
    assert _without_times(to_jsonable(jobs)) == _without_times(to_jsonable(serial))

    flaky = jobs["tiny/flaky"]
    assert [str(a.verdict) for a in flaky.attempts] == ["pass", "crash", "pass"]
    assert (flaky.decides, str(flaky.verdict)) == (2, "crash")
    assert flaky.rates["crash"].text.startswith("1 of 3 (33.3 %, 95 % interval")
    assert "1 of 3 (33.3 %" in output
    starts = {
        a.ranks[0].phases[0].begin_s: a.ranks[0].ended_s
        for result in jobs.values()
        for a in result.attempts
    }
    overlap = any(a < b < end for a, end in starts.items() for b in starts if b != a)
    assert overlap, "nothing ran beside anything"
