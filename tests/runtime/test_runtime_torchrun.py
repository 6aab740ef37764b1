"""The whole thing under the real launchers: exit codes, signals, and what a kill leaves behind."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from run_session import ROOT, Session

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(600)]


@pytest.fixture
def session(tmp_path):
    made = Session(tmp_path)
    yield made
    for pid in made.processes():
        os.kill(pid, signal.SIGKILL)


def test_killing_torchrun_leaves_nothing_and_waiters_never_load_torch(session):
    process = session.torchrun(*session.scenarios("asleep"), "--inject", "sleep@1:score")
    session.wait_for_phase("score", process)
    running = session.processes()
    scripts = [pid for pid, command in running.items() if b"launch/run.py\0--engine" in command]
    workers = [pid for pid in scripts if pid != process.pid]
    with_torch = [pid for pid in workers if "libtorch" in Path(f"/proc/{pid}/maps").read_text()]
    assert len(workers) == 2, running
    assert with_torch == [], "neither the leader nor a waiter needs torch"
    assert len(running) >= 6, "torchrun, two workers, forkserver, two ranks"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    session.assert_gone_within(10.0)
    assert session.record().exit_code is None
    code, output = session.finish(session.command("status", str(session.run_folder())))
    assert code == 3
    assert "cut short" in output
    assert "dsa-harness run --resume" in output


@pytest.mark.parametrize(
    ("number", "code", "isolation"),
    [
        (signal.SIGTERM, 143, "scenario"),
        pytest.param(signal.SIGINT, 130, "none", marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_torchrun_ends_the_run_and_is_recorded(session, number, code, isolation):
    words = ["--isolation", isolation, "--inject", "sleep@0:score@second"]
    process = session.torchrun(*session.scenarios("first", "second", "third"), *words)
    session.wait_for_phase("select", process, scenario="tiny_second", rank=1)
    begin_s = time.monotonic()
    process.send_signal(number)
    session.finish(process)
    assert time.monotonic() - begin_s < 60
    session.assert_gone_within(10.0)
    record = session.record()
    assert record.exit_code == code
    assert record.finished_at is not None
    assert record.state == "interrupted"
    results = session.results()
    assert set(results) == {"tiny/first", "tiny/second"}
    cut = results["tiny/second"].last
    assert (str(cut.verdict), cut.cut_short) == (
        "infrastructure",
        "the run was interrupted while it ran",
    )


def test_exit_codes_and_a_clean_console_without_torchrun(session):
    names = session.scenarios("first", "second", "third")
    code, output = session.finish(session.dsa_harness(*names, "--inject", "sigsegv@1:score@second"))
    assert code == 4
    assert output.splitlines()[-1].startswith("exit code 4")
    for noise in ("Traceback", "torch/distributed", "ChildFailedError", "OMP_NUM_THREADS"):
        assert noise not in output
    verdicts = {name: str(result.verdict) for name, result in session.results().items()}
    assert verdicts == {"tiny/first": "pass", "tiny/second": "crash", "tiny/third": "pass"}
    status, line = session.finish(session.command("status", str(session.run_folder())))
    assert status == 4
    assert len(line.splitlines()) == 1
    assert "3 scenarios: 2 expected, 1 unexpected; exit code 4" in line
    assert (next(session.folder.glob("runs/*")) / "report.md").exists()


def test_each_worker_can_supervise_its_own_rank(session):
    """The way of CUDA ranks, on CPU ranks: torch-only preload, children of their own workers."""
    names = session.scenarios("first", "second", "third")
    words = ["--supervision", "worker", "--inject", "sigkill@1:score@second"]
    code, output = session.finish(session.torchrun(*names, *words))
    assert code == 1, output
    results = session.results()
    assert [str(r.verdict) for r in results.values()] == ["pass", "crash", "pass"], output
    assert results["tiny/second"].last.fault.global_rank == 1
    assert session.record().exit_code == 4
    session.assert_gone_within(10.0)


@pytest.mark.slow
def test_group_isolation_repeats_those_that_shared_a_fault(session):
    names = session.scenarios("first", "second", "third")
    words = ["--isolation", "group", "--inject", "sigkill@1:score@second"]
    code, output = session.finish(session.dsa_harness(*names, *words))
    assert code == 4, output
    attempts = {name: result.attempts for name, result in session.results().items()}
    assert [a.isolation for a in attempts["tiny/first"]] == ["group", "scenario"]
    assert [a.isolation for a in attempts["tiny/second"]] == ["group"]
    notes = {note.topic: note.text for note in attempts["tiny/second"][0].notes}
    assert notes["processes shared with"] == "tiny/first"
    assert [a.isolation for a in attempts["tiny/third"]] == ["group"]


@pytest.mark.slow
def test_isolation_none_runs_in_the_workers(session):
    names = session.scenarios("first", "second", "third")
    words = ["--isolation", "none", "--inject", "exception@1:score@second"]
    code, output = session.finish(session.dsa_harness(*names, *words))
    results = session.results()
    assert [str(r.verdict) for r in results.values()] == ["pass", "crash", "not_run"], output
    assert results["tiny/second"].last.fault.global_rank == 1
    assert "isolation none" in results["tiny/third"].last.missing_capability
    assert session.record().exit_code == 4
    journals = [
        json.loads(path.read_text().splitlines()[0])["pid"]
        for path in sorted(session.folder.glob("runs/*/ranks/*/1/rank0.jsonl"))
    ]
    assert len(set(journals)) == 1, "rank 0 is the leading worker itself"
    assert code in (3, 4), "torch elastic may see the failed worker before the leader"


@pytest.mark.slow
def test_a_run_without_a_launcher_is_one_rank(session):
    name = session.scenarios("alone")[0]
    text = Path(name).read_text().replace("context_parallel_size: 2", "context_parallel_size: 1")
    Path(name).write_text(text)
    script = str(ROOT / "launch" / "run.py")
    code, output = session.finish(session.start(script, name, "--engine", "tiny_engine:execute"))
    assert code == 0, output
    assert session.record().world_size == 1
