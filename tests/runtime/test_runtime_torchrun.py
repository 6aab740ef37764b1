"""The whole thing under the real launchers: exit codes, signals, and what a kill leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from harness.record.result import RunRecord
from reports.store import load_run

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
MARKER = "DSA_HARNESS_TEST_MARKER"

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("ranks"), pytest.mark.timeout(180)]

SCENARIO = """\
id: tiny/{name}
summary: Two ranks.
model: small
level: attention
kernels: {{dsa_kernel_backend: none}}
parallel: {{context_parallel_size: 2}}
microbatches: [{{sequences: [64, 32]}}]
limits: {{time_s: {time_s}}}
"""


class Session:
    """Runs commands that carry a marker of their own in their environment."""

    def __init__(self, folder):
        self.folder = folder
        self.marker = uuid.uuid4().hex
        self.output = folder / "output.txt"

    def scenarios(self, *names, time_s=60):
        paths = [self.folder / f"{name}.yaml" for name in names]
        for path, name in zip(paths, names, strict=True):
            path.write_text(SCENARIO.format(name=name, time_s=time_s))
        return [str(path) for path in paths]

    def start(self, *words):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "TORCHELASTIC"))}
        env |= {"PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", MARKER: self.marker}
        # Into a file: survivors of a kill would keep a pipe open and the reader waiting.
        with open(self.output, "w") as output:
            return subprocess.Popen(
                [sys.executable, *words],
                cwd=self.folder,
                env=env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def finish(self, process, timeout_s=120):
        """Wait for the end and return exit status and output."""
        return process.wait(timeout=timeout_s), self.output.read_text()

    def torchrun(self, *words):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        script = str(ROOT / "launch" / "run.py")
        return self.start(*launcher, script, "--engine", "tiny_engine:execute", *words)

    def dsa_harness(self, *words):
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        code += "from launch.cli import main; main()"
        return self.start(
            "-c", code, "run", "--ranks", "2", "--engine", "tiny_engine:execute", *words
        )

    def processes(self):
        """Living processes that carry the marker, with their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if f"{MARKER}={self.marker}".encode() in (entry / "environ").read_bytes():
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if state not in "ZX":
                        found[int(entry.name)] = (entry / "cmdline").read_bytes()
            except OSError:
                continue
        return found

    def wait_for_phase(self, phase, process, *, scenario="tiny", rank=1, limit_s=60):
        """Wait until a rank's journal has entered a phase."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            for path in self.folder.glob(f"runs/*/ranks/{scenario}*/*/rank{rank}.jsonl"):
                if f'"phase": "{phase}"' in path.read_text():
                    return
            assert process.poll() is None, self.output.read_text()
            time.sleep(0.05)
        raise AssertionError(f"no rank entered {phase}")

    def record(self) -> RunRecord:
        (run,) = self.folder.glob("runs/*")
        return load_run(run).record

    def results(self):
        (run,) = self.folder.glob("runs/*")
        return {result.id: result for result in load_run(run).results}

    def assert_gone_within(self, limit_s):
        deadline = time.monotonic() + limit_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == {}


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
    session.assert_gone_within(2.0)
    assert session.record().exit_code is None
    status = session.start("-c", _status_code(session))
    code, output = session.finish(status)
    assert code == 3
    assert "cut short" in output


def _status_code(session):
    (run,) = session.folder.glob("runs/*")
    words = ["status", str(run)]
    return (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom launch.cli import main; main({words})"
    )


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
    assert time.monotonic() - begin_s < 10
    session.assert_gone_within(2.0)
    record = session.record()
    assert record.exit_code == code
    assert record.finished_at is not None
    assert set(session.results()) == {"tiny/first"}


def test_exit_codes_and_a_clean_console_without_torchrun(session):
    names = session.scenarios("first", "second", "third")
    code, output = session.finish(session.dsa_harness(*names, "--inject", "sigsegv@1:score@second"))
    assert code == 4
    assert output.splitlines()[-1].startswith("exit code 4")
    for noise in ("Traceback", "torch/distributed", "ChildFailedError", "OMP_NUM_THREADS"):
        assert noise not in output
    verdicts = {name: str(result.verdict) for name, result in session.results().items()}
    assert verdicts == {"tiny/first": "pass", "tiny/second": "crash", "tiny/third": "pass"}
    status, line = session.finish(session.start("-c", _status_code(session)))
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
    session.assert_gone_within(2.0)


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
