"""Runs under the real launchers, each with a mark of its own, for tests of whole runs."""

import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

from harness.record.result import RunRecord
from reports.store import load_run

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
MARKER = "DSA_HARNESS_TEST_MARKER"

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

    def finish(self, process, timeout_s=200):
        """Wait for the end and return exit status and output."""
        return process.wait(timeout=timeout_s), self.output.read_text()

    def command(self, *words):
        """Start ``dsa-harness`` with these words."""
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        code += "from launch.cli import main; main()"
        return self.start("-c", code, *words)

    def run_folder(self):
        (run,) = (self.folder / "runs").iterdir()
        return run

    def torchrun(self, *words):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        script = str(ROOT / "launch" / "run.py")
        return self.start(*launcher, script, "--engine", "tiny_engine:execute", *words)

    def dsa_harness(self, *words):
        return self.command("run", "--ranks", "2", "--engine", "tiny_engine:execute", *words)

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

    def wait_for_phase(self, phase, process, *, scenario="tiny", rank=1, limit_s=150):
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
        return load_run(self.run_folder()).record

    def results(self):
        return {result.id: result for result in load_run(self.run_folder()).results}

    def assert_gone_within(self, limit_s):
        deadline = time.monotonic() + limit_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == {}
