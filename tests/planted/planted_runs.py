"""Runs ``launch/run.py`` under a real torchrun on scenarios written for a test."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.record.result import RunRecord, ScenarioResult
from reports.store import load_run

ROOT = Path(__file__).resolve().parents[2]

SCENARIO = """\
id: {id}
summary: Planted in a test.
model: small
level: attention
kernels: {{dsa_kernel_backend: cudnn, source: modelled, modelled: {{cudnn_frontend: "1.25.0"}}}}
parallel: {{context_parallel_size: {cp}}}
microbatches: [{{sequences: [128, 64, 64]}}]
expect: {{verdict: pass, plan: packed_thd}}
limits: {{time_s: {time_s}}}
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run."""

    status: int
    output: str
    folder: Path
    record: RunRecord
    results: dict[str, ScenarioResult]


def write_scenario(
    folder: Path, scenario_id: str, *, cp: int = 4, time_s: float = 20.0, text: str = SCENARIO
) -> Path:
    path = folder / f"{scenario_id.replace('/', '-')}.yaml"
    path.write_text(text.format(id=scenario_id, cp=cp, time_s=time_s))
    return path


def torchrun(nproc: int, *arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(nproc),
        str(ROOT / "launch" / "run.py"),
        *arguments,
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
    return subprocess.run(
        command,
        cwd=ROOT,
        env=environment | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def run(nproc: int, paths: list[Path], out: Path, *arguments: str, timeout_s: float = 240) -> Run:
    """Run scenario files under torchrun and read the records back."""
    words = ("--scenario", *map(str, paths), "--out", str(out), *arguments)
    done = torchrun(nproc, *words, timeout_s=timeout_s)
    output = done.stdout + done.stderr
    folders = sorted(out.iterdir()) if out.exists() else []
    assert len(folders) == 1, f"expected one run folder, found {folders}\n{output}"
    stored = load_run(folders[0])
    assert stored.record is not None, output
    return Run(
        status=done.returncode,
        output=output,
        folder=folders[0],
        record=stored.record,
        results={result.id: result for result in stored.results},
    )
