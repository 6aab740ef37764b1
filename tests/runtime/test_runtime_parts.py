"""Small parts of the runtime: injections, folders, devices, stacks, progress, stop requests."""

import faulthandler
import io
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.record.phase import Phase
from harness.record.verdict import ExitCode, Outcome, Verdict
from harness.runtime import devices
from harness.runtime.inject import (
    Injection,
    PhaseInjector,
    for_rank,
    for_scenario,
    parse_injection,
)
from harness.runtime.journal import Journal, read_journal
from harness.runtime.limits import PhaseLimits
from harness.runtime.progress import Progress, summary_line
from harness.runtime.run_folder import RunFolder, RunFolderError, check_writable
from harness.runtime.stack_timer import StackTimer
from harness.runtime.stacks import innermost_file, waits_in_collective
from harness.runtime.stop import StopRequest


def test_injections_are_read_and_meant_for_their_rank_and_scenario():
    one = parse_injection("past_limit@2:select@multi[cp4]")
    assert one == Injection(
        kind="past_limit", global_rank=2, phase=Phase.SELECT, scenario="multi[cp4]"
    )
    assert str(one) == "past_limit@2:select@multi[cp4]"
    texts = ("sigsegv@1:score", "past_limit@2:select@multi")
    assert [i.kind for i in for_rank(texts, "a/multi", 2)] == ["past_limit"]
    assert for_rank(texts, "a/single", 2) == ()
    assert len(for_scenario(texts, "a/multi")) == 2


def test_an_injection_happens_once_and_is_written_first(tmp_path):
    journal = Journal(tmp_path / "j", global_rank=0)
    kinds = [parse_injection("exception@0:score"), parse_injection("wrong_index@0:score")]
    journal.observers.append(PhaseInjector(kinds, journal))
    journal.phase(Phase.GATHER)
    with pytest.raises(RuntimeError, match="injected exception in phase score"):
        journal.phase(Phase.SCORE)
    journal.phase(Phase.SCORE)
    journal.close()
    assert read_journal(tmp_path / "j", global_rank=0).facts["injecting"] == "exception@0:score"


def test_run_folders_do_not_meet(tmp_path):
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    first = RunFolder.create(tmp_path / "new" / "runs", "night", now)
    second = RunFolder.create(tmp_path / "new" / "runs", "night", now)
    assert first.path.name == "20260102T030405Z-night"
    assert second.path.name == "20260102T030405Z-night-2"
    assert {path.name for path in first.path.iterdir()} == {"results", "ranks"}


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../../b", "..", "x\0y"])
def test_hostile_ids_stay_inside_the_run_folder(tmp_path, name):
    folder = RunFolder.create(tmp_path / "runs", name)
    made = folder.attempt_folder(name, 1)
    assert made.resolve().is_relative_to(folder.path)
    assert folder.path.parent == (tmp_path / "runs").resolve()


def test_an_output_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="is a file, expected a folder; choose another --out"):
        check_writable(tmp_path / "file" / "runs")
    check_writable(tmp_path / "a" / "b" / "c")
    assert not (tmp_path / "a").exists()
    with pytest.raises(RunFolderError, match="choose another --out"):
        RunFolder.create(Path("/proc/runs"), "x")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_read_only_output_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(RunFolderError, match="cannot be written"):
        check_writable(tmp_path / "runs")


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 3), ("0,1", 2), ("0,-1,1", 1), ("", 0), ("-1", 0), ("0,1,2,3,4", 3)],
)
def test_gpus_are_counted_by_their_device_files(tmp_path, visible, count):
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert devices.num_gpus(env, tmp_path) == 0, "no driver"
    (tmp_path / "proc/driver/nvidia/version").touch()
    assert devices.num_gpus(env, tmp_path) == count


def test_a_gpu_that_keeps_memory_is_unclean(monkeypatch):
    monkeypatch.setattr(devices, "used_memory", lambda: (1 << 30, 5 << 30))
    assert devices.unclean_gpus((1 << 30, 5 << 30), limit_s=0.0) == ()
    found = devices.unclean_gpus((1 << 30, 1 << 30), limit_s=0.0)
    assert found == ("GPU 1: 5120 MiB in use after the attempt, 1024 MiB before",)


def test_memory_that_comes_back_late_is_clean(monkeypatch):
    answers = iter([(5 << 30,), (5 << 30,), (1 << 30,)])
    monkeypatch.setattr(devices, "used_memory", lambda: next(answers))
    assert devices.unclean_gpus((1 << 30,), limit_s=5.0) == ()


STACKS = """Timeout (0:00:02)!
Thread 0x00007f00 (most recent call first):
  File "/lib/torch/distributed/distributed_c10d.py", line 3 in all_reduce
Thread 0x00007f01 (most recent call first):
  File "/lib/threading.py", line 3 in wait

Current thread 0x00007f00 (most recent call first):
  File "{file}", line 7 in f
  File "/lib/torch/distributed/c10d_logger.py", line 8 in g
"""


@pytest.mark.parametrize(
    ("file", "expected"),
    [("/lib/torch/distributed/distributed_c10d.py", True), ("/repo/megatron/dsa.py", False)],
)
def test_the_last_requested_stack_says_where_a_rank_stood(tmp_path, file, expected):
    path = tmp_path / "rank0.stacks"
    path.write_text(STACKS.format(file=file))
    assert innermost_file(path.read_text()) == file
    assert waits_in_collective(str(path)) is expected


def test_without_a_requested_stack_nothing_is_claimed(tmp_path):
    assert waits_in_collective(str(tmp_path / "none")) is None
    assert innermost_file("Timeout!\nThread 0x1 (most recent call first):\n  File ...") is None


def test_faulthandler_still_writes_what_is_read_here(tmp_path):
    code = (
        "import faulthandler, os, signal, sys\n"
        "faulthandler.register(signal.SIGUSR1, open(sys.argv[1], 'w'), all_threads=True)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
    )
    script = tmp_path / "asker.py"
    script.write_text(code)
    subprocess.run([sys.executable, str(script), str(tmp_path / "out")], check=True)
    assert innermost_file((tmp_path / "out").read_text()) == str(script)


def test_the_stack_timer_is_armed_per_budget(monkeypatch):
    armed = []
    monkeypatch.setattr(
        faulthandler, "dump_traceback_later", lambda after, file, exit: armed.append(after)
    )
    limits = PhaseLimits(start_s=10, build_s=20, compile_s=100, scenario_s=30)
    timer = StackTimer(limits, io.StringIO())
    for phase in (Phase.START, Phase.BUILD, Phase.LAYOUT, Phase.SCORE, Phase.COMPARE):
        timer(phase)
    assert armed == pytest.approx([9, 18, 27])
    timer(Phase.COMPILE)
    timer(Phase.LAYOUT)
    assert armed[3] == pytest.approx(90)
    assert armed[4] == pytest.approx(27, abs=0.5), "the budget goes on where it stopped"


def test_every_phase_has_a_limit():
    limits = PhaseLimits(scenario_s=7.0)
    assert {limits.of(phase) for phase in list(Phase)[4:]} == {7.0}
    assert all(limits.of(phase) > 7.0 for phase in list(Phase)[:4])
    assert limits.collective_s > sum(limits.of(phase) for phase in list(Phase)[:5])


def _result(name, outcome=Outcome.EXPECTED, attempts=1):
    last = SimpleNamespace(
        duration_s=1.0, number=attempts, isolation="scenario", verdict=Verdict.PASS
    )
    return SimpleNamespace(
        id=name,
        outcome=outcome,
        verdict=Verdict.PASS,
        last=last,
        attempts=(last,) * attempts,
        explanation="why",
    )


def test_progress_counts_scenarios_and_not_attempts():
    stream = io.StringIO()
    progress = Progress(12, stream=stream)
    for name in ("a", "b", "a"):
        progress.begin(name)
        progress.finish(_result(name, attempts=2 if progress._numbers.get("b") else 1))
    places = [line[:7] for line in stream.getvalue().splitlines()]
    assert places == ["[ 1/12]", "[ 2/12]", "[ 1/12]"]
    assert "(attempt 2, isolation scenario)" in stream.getvalue()


def test_progress_keeps_the_order_of_the_plan_and_counts_repeats():
    stream = io.StringIO()
    progress = Progress(2, stream=stream)
    progress.expect(["a", "b"])
    progress.begin("b")
    progress.finish(_result("b"), 3)
    assert stream.getvalue().startswith("[2/2]")
    assert "(attempt 1 of 3, isolation scenario)" in stream.getvalue()


def test_a_heartbeat_comes_once_a_minute(monkeypatch):
    stream = io.StringIO()
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    progress = Progress(1, stream=stream)
    progress.begin("slow")
    for second in range(130):
        now[0] = float(second)
        progress.beat({0: Phase.SCORE, 1: Phase.GATHER}, float(second))
    lines = stream.getvalue().splitlines()
    assert lines == [
        "[1/1] slow: 60 s, rank 0 in score, rank 1 in gather",
        "[1/1] slow: 120 s, rank 0 in score, rank 1 in gather",
    ]


def test_the_last_line():
    results = [_result("a"), _result("b", Outcome.KNOWN), _result("c", Outcome.KNOWN)]
    assert summary_line(results, ExitCode.OK, 12.34) == (
        "3 scenarios: 1 expected, 2 known in 12.3 s; exit code 0 (all as expected or known)"
    )


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, ExitCode.TERMINATED), (signal.SIGINT, ExitCode.INTERRUPTED)],
)
def test_a_stop_request_is_a_flag(number, code):
    saved = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        stop = StopRequest()
        stop.install()
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
        assert stop.exit_code is code
    finally:
        for one, handler in saved.items():
            signal.signal(one, handler)
