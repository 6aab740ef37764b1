"""Scenarios per minute of one run, against one torchrun for each scenario.

Run with ``python benchmarks/launch.py [--scenarios 20] [--ranks 4] [--slow 2]``. Both sides do the
same through the same production path: the quick side runs all scenarios in one torchrun, each in
processes of its own; the slow side starts a torchrun for each, whose workers import torch and
Megatron and run it themselves (``--isolation none``). The slow side is measured a few times and
extrapolated. Both sides share the machine, so the ratio is what counts; 20 is the aim.

Below the ratio: the time from the start of one scenario of the quick run to that of the next, once
imports are done (the aim is less than 0.5 s on 4 idle ranks), and where a rank spends it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import datetime
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SCENARIO = """\
id: launch/{number:02d}
summary: A small pack, for measuring how quickly scenarios follow each other.
model:
  name: tiny
  hidden_size: 64
  ffn_hidden_size: 64
  num_attention_heads: 4
  q_lora_rank: 32
  dsa_indexer_n_heads: 4
level: attention
kernels: {{dsa_kernel_backend: none}}
parallel: {{context_parallel_size: {ranks}}}
microbatches: [{{sequences: [{length}, 32]}}]
expect: {{verdict: pass}}
limits: {{time_s: 60}}
"""


def write_scenarios(folder: Path, number: int, ranks: int) -> list[Path]:
    paths = []
    for index in range(number):
        path = folder / f"{index:02d}.yaml"
        length = 8 * ranks * (1 + index % 4)
        path.write_text(SCENARIO.format(number=index, ranks=ranks, length=length))
        paths.append(path)
    return paths


def timed_run(folder: Path, ranks: int, paths: list[Path], *words: str) -> float:
    """Seconds of one torchrun over some scenarios; its run has to be green."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), str(ROOT / "launch" / "run.py"), *words]
    command += ["--out", str(folder / "runs"), "--scenario", *map(str, paths)]
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        raise SystemExit(f"the run was not green, so its time means nothing:\n{done.stdout}")
    return seconds


def print_overhead(run: Path) -> None:
    """Print medians over the scenarios of a run, without the first two."""
    starts, phases = [], defaultdict(list)
    for path in sorted((run / "results").glob("*.json")):
        attempt = json.loads(path.read_text())["attempts"][-1]
        starts.append(datetime.fromisoformat(attempt["started_at"]).timestamp())
        for rank in attempt["ranks"]:
            spent: dict[str, float] = defaultdict(float)
            for timing in rank["phases"]:
                spent[timing["phase"]] += timing["end_s"] - timing["begin_s"]
            for phase, seconds in spent.items():
                phases[phase].append(seconds)
    spans = sorted(after - before for before, after in pairwise(sorted(starts)[2:]))
    print(
        f"one scenario to the next:  {statistics.median(spans):6.2f} s median, "
        f"{spans[0]:.2f} to {spans[-1]:.2f} s (aim: less than 0.5)"
    )
    parts = (f"{phase} {1000 * statistics.median(spent):.0f}" for phase, spent in phases.items())
    print(f"a rank's phases, ms:       {', '.join(parts)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", type=int, default=20, help="scenarios of the quick side")
    parser.add_argument("--ranks", type=int, default=4, help="rank processes")
    parser.add_argument("--slow", type=int, default=2, help="torchruns measured on the slow side")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dsa-launch-") as name:
        folder = Path(name)
        paths = write_scenarios(folder, asked.scenarios, asked.ranks)
        slow = [
            timed_run(folder, asked.ranks, [path], "--isolation", "none")
            for path in paths[: asked.slow]
        ]
        before = set((folder / "runs").iterdir())
        quick = timed_run(folder, asked.ranks, paths)
        (run,) = set((folder / "runs").iterdir()) - before
        print_overhead(run)
    each = statistics.mean(slow)
    total = each * asked.scenarios
    print(
        f"one torchrun per scenario: {each:6.1f} s each ({len(slow)} measured), "
        f"{60 / each:6.1f} scenarios a minute, {total:.0f} s for {asked.scenarios} (extrapolated)"
    )
    print(
        f"one run for all:           {quick / asked.scenarios:6.2f} s each, "
        f"{60 * asked.scenarios / quick:6.1f} scenarios a minute, {quick:.1f} s in all"
    )
    print(f"ratio {total / quick:.1f} (aim: at least 20)")


if __name__ == "__main__":
    main()
