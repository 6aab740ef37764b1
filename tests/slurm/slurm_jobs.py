"""Submissions to the tests' Slurm: scenario files, a cluster file, and the commands of the tool."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from slurm_starter import Sandbox

from launch.slurm.submission import Submission, read_submission
from reports.store import StoredRun, load_run

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

SCENARIO = """\
id: tiny/{name}
summary: Some ranks.
model: small
level: attention
kernels: {{dsa_kernel_backend: none}}
parallel: {{context_parallel_size: {ranks}}}
microbatches: [{{sequences: [64, 32]}}]
limits: {{time_s: 120}}
"""
CLUSTER = """\
cluster: tests
summary: The Slurm that the tests start.
ranks_per_node: {ranks_per_node}
gpus: {gpus}
exclusive: false
mem: null
time: "10"
signal_s: 0
python: {python}
environment:
  PYTHONPATH: {path}
  OMP_NUM_THREADS: "1"
  GATE: {gate}
"""


class Jobs:
    """One test's folder, shared by all nodes, and its submissions."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox = sandbox
        self.folder = folder
        self.gate = folder / "gate"
        self.out = folder / "submissions"

    def scenario(self, name: str, ranks: int = 1) -> str:
        path = self.folder / f"{name}.yaml"
        path.write_text(SCENARIO.format(name=name, ranks=ranks))
        return str(path)

    def cluster(self, ranks_per_node: int = 1, gpus: str = "none") -> str:
        path = self.folder / f"cluster-{ranks_per_node}-{gpus}.yaml"
        path.write_text(
            CLUSTER.format(
                ranks_per_node=ranks_per_node,
                gpus=gpus,
                python=sys.executable,
                path=f"{HERE}:{ROOT / 'tests/runtime'}",
                gate=self.gate,
            )
        )
        return str(path)

    def tool(self, *words: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in self.sandbox.env.items() if not k.startswith("PYTEST")}
        return subprocess.run(
            [sys.executable, "-m", "launch.cli", *words],
            cwd=ROOT,
            env=env,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def submit(self, *words: str, engine: str = "slurm_engine:execute") -> Path:
        """Submit and return the submission's folder."""
        more = ["--engine", engine] if engine else []
        done = self.tool("submit", *words, "--out", str(self.out), *more)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.splitlines()[-1].removeprefix("submission folder "))

    def again(self, submission: Path, cluster: str) -> subprocess.CompletedProcess[str]:
        return self.tool("submit", "--again", str(submission), "--cluster", cluster)

    def wait(self, submission: Path, timeout_s: float = 200) -> subprocess.CompletedProcess[str]:
        return self.tool("wait", str(submission), "--poll", "0.5", "--timeout", str(timeout_s))

    def record(self, submission: Path) -> Submission:
        return read_submission(submission)

    def merged(self, submission: Path) -> StoredRun:
        return load_run(submission / "merged")

    def verdicts(self, submission: Path) -> dict[str, str]:
        return {result.id: str(result.verdict) for result in self.merged(submission).results}

    def wait_until(self, ready: Callable[[], object], limit_s: float = 300) -> None:
        end = time.monotonic() + limit_s
        while not ready():
            assert time.monotonic() < end, "not within the limit"
            time.sleep(0.1)

    def wait_for_phase(self, submission: Path, scenario: str, phase: str = "layout") -> None:
        """Wait until some rank of a scenario has entered a phase."""

        job = self.record(submission).jobs[0].id

        def entered() -> bool:
            state = self.state(job)
            logs = "".join(path.read_text() for path in submission.glob("logs/*"))
            assert state in ("PENDING", "RUNNING", "CONFIGURING"), f"{state}: {logs}"
            files = submission.glob(f"parts/*/*-part/ranks/tiny_{scenario}*/*/rank*.jsonl")
            return any(f'"phase": "{phase}"' in path.read_text() for path in files)

        self.wait_until(entered)

    def state(self, job: str) -> str:
        return self.sandbox.run(["squeue", "-h", "-t", "all", "-j", job, "-o", "%T"]).stdout.strip()

    def open_gate(self) -> None:
        self.gate.touch()


def fresh_environment() -> dict[str, str]:
    """The environment without what pytest adds."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
