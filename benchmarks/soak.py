"""Many small scenarios in one run, a tenth of them faulty: nothing leaks, all verdicts are right.

Run with ``python benchmarks/soak.py [--scenarios 300] [--ranks 4] [--faulty 0.1] [--seed 0]``.
Which scenarios are faulty, and how, follows from the seed. Ends with exit code 1 when a verdict,
faulty rank or phase is not the expected one, or when the processes that live as long as the run
(launcher, workers, forkserver) grow from the first third of the scenarios to the last beyond these
bounds:

- processes alive at the same time, py-spy's aside: none more
- open files: 4 more
- resident memory: 64 MiB more (the leader keeps every result until the end)

The time of a scenario has no bound, since other programs share the machine; it is printed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20
FILES_BOUND = 4
MEMORY_BOUND = 64 * MIB
SAMPLE_S = 0.3
PEAK_EVERY = 10
"""Samples between two of the whole tree's memory, which takes a walk over all mappings."""

FAULTS = {
    "exception": "crash",
    "sigsegv": "crash",
    "sigkill": "crash",
    "exit0": "crash",
    "oom": "out_of_memory",
    "address_fault": "memory_fault",
    "wrong_index": "wrong_selection",
    "sleep": "hang",
    "sigstop": "hang",
    "extra_collective": "hang",
}
"""Kinds of ``--inject`` and the verdicts that they have to end with."""
PHASES = ("gather", "score", "compare")

SCENARIO = """\
id: soak/{number:04d}
summary: A small pack, one of many.
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
limits: {{time_s: {time_s}}}
"""


@dataclass(frozen=True, kw_only=True)
class Planted:
    """What one scenario has to end with."""

    kind: str = ""
    phase: str = ""
    rank: int = 0

    @property
    def verdict(self) -> str:
        """Verdict of the scenario."""
        return FAULTS.get(self.kind, "pass")

    @property
    def time_s(self) -> float:
        """Limit of the scenario; a hang costs it."""
        return 2.0 if self.verdict == "hang" else 60.0


def choose(number: int, ranks: int, share: float, seed: int) -> dict[int, Planted]:
    """Scenario number to its fault, for a share of all scenarios."""
    chance = random.Random(seed)
    faulty = chance.sample(range(number), round(number * share))
    return {
        index: Planted(
            kind=chance.choice(tuple(FAULTS)),
            # A wrong pick is one from its making on.
            phase=chance.choice(PHASES[:2] if place % 2 else PHASES),
            rank=chance.randrange(ranks),
        )
        for place, index in enumerate(sorted(faulty))
    }


def write_scenarios(
    folder: Path, number: int, ranks: int, faults: dict[int, Planted]
) -> Iterator[Path]:
    for index in range(number):
        path = folder / f"{index:04d}.yaml"
        length = 8 * ranks * (1 + index % 4)
        time_s = faults.get(index, Planted()).time_s
        text = SCENARIO.format(number=index, ranks=ranks, length=length, time_s=time_s)
        path.write_text(text)
        yield path


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The run's processes at one moment.

    Attributes:
        done: Scenarios with a result.
        files: Process id to number of open files.
        memory: Process id to resident bytes.
        at_s: Clock of this process.
    """

    done: int
    files: dict[int, int]
    memory: dict[int, int]
    at_s: float


@dataclass(kw_only=True)
class Watcher:
    """Looks at a process and all its descendants until it ends."""

    pid: int
    runs: Path
    samples: list[Sample] = field(default_factory=list)
    peak: int = 0

    def look(self) -> None:
        """Take a sample."""
        tree = descendants(self.pid)
        results = sum(1 for _ in self.runs.glob("*/results/*.json"))
        files = {pid: found for pid in tree if (found := open_files(pid))}
        memory = {pid: memory_of(pid, "status", "VmRSS:") for pid in files}
        sample = Sample(done=results, files=files, memory=memory, at_s=time.monotonic())
        self.samples.append(sample)
        if len(self.samples) % PEAK_EVERY == 0:
            # Each page is shared out among those who map it, so that the sum means something.
            total = sum(memory_of(pid, "smaps_rollup", "Pss:") for pid in tree)
            self.peak = max(self.peak, total)


def descendants(root: int) -> tuple[int, ...]:
    """Return a process and everything below it, without tools."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, due = [], [root]
    while due:
        pid = due.pop()
        if not is_tool(pid):
            found.append(pid)
            due += children.get(pid, ())
    return tuple(found)


def is_tool(pid: int) -> bool:
    """Whether a process looks at a hanging rank, which happens only where one hangs."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "py-spy"
    except OSError:
        return False


def open_files(pid: int) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0


def memory_of(pid: int, file: str, name: str) -> int:
    """Return a line's figure in bytes, 0 for a process that is gone."""
    try:
        text = Path(f"/proc/{pid}/{file}").read_text()
    except OSError:
        return 0
    return int(text.partition(name)[2].split()[0]) * 1024 if name in text else 0


@dataclass(frozen=True, kw_only=True)
class Third:
    """The run's processes over a third of its scenarios."""

    processes: int
    files: float
    memory: float
    scenario_s: float


def thirds(samples: Sequence[Sample], number: int, spans: dict[int, float]) -> list[Third]:
    """Summarise the samples; open files and memory are those of the processes that stay."""
    parts = [
        [s for s in samples if number * part // 3 <= s.done < number * (part + 1) // 3 and s.done]
        for part in range(3)
    ]
    if not all(parts):
        raise SystemExit("the run was too short to look at each third; take more --scenarios")
    staying = set(parts[0][0].files).intersection(parts[2][-1].files)
    found = []
    for part, seen in enumerate(parts):
        times = [spans[i] for i in spans if number * part // 3 <= i < number * (part + 1) // 3]
        found.append(
            Third(
                processes=max(len(sample.files) for sample in seen),
                files=statistics.median(sum(s.files.get(p, 0) for p in staying) for s in seen),
                memory=statistics.median(sum(s.memory.get(p, 0) for p in staying) for s in seen),
                scenario_s=statistics.median(times),
            )
        )
    return found


def results(runs: Path) -> dict[int, dict[str, Any]]:
    """Scenario number to its result."""
    found = {}
    for path in runs.glob("*/results/*.json"):
        result = json.loads(path.read_text())
        found[int(result["id"].rpartition("/")[2])] = result
    return found


def spans_of(found: dict[int, dict[str, Any]], faults: dict[int, Planted]) -> dict[int, float]:
    """Seconds from the start of each healthy scenario to that of the next one."""
    starts = {
        index: datetime.fromisoformat(result["attempts"][0]["started_at"]).timestamp()
        for index, result in found.items()
    }
    return {
        index: starts[index + 1] - start
        for index, start in starts.items()
        if index + 1 in starts and index not in faults
    }


def differences(
    found: dict[int, dict[str, Any]], faults: dict[int, Planted], number: int
) -> Iterator[str]:
    """Say what is not as planted."""
    for index in range(number):
        due = faults.get(index, Planted())
        if index not in found:
            yield f"scenario {index}: no result"
            continue
        attempt = found[index]["attempts"][-1]
        fault = attempt["fault"] or {}
        seen = (attempt["verdict"], fault.get("global_rank"), fault.get("phase"))
        named = due.verdict not in ("pass", "wrong_selection")
        wanted = (due.verdict, due.rank, due.phase) if named else (due.verdict, None, None)
        if seen != wanted:
            yield f"scenario {index} ({due.kind or 'healthy'}): expected {wanted}, found {seen}"


def soak(folder: Path, asked: argparse.Namespace, faults: dict[int, Planted]) -> Watcher:
    """Run everything and watch it."""
    paths = list(write_scenarios(folder, asked.scenarios, asked.ranks, faults))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(asked.ranks), str(ROOT / "launch" / "run.py")]
    command += ["--out", str(folder / "runs"), "--scenario", *map(str, paths)]
    for index, due in faults.items():
        command += ["--inject", f"{due.kind}@{due.rank}:{due.phase}@soak/{index:04d}"]
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        watcher = Watcher(pid=process.pid, runs=folder / "runs")
        try:
            while process.poll() is None:
                watcher.look()
                time.sleep(SAMPLE_S)
        finally:
            process.kill()
            process.wait()
    return watcher


def show(asked: argparse.Namespace, watcher: Watcher, found: list[Third], seconds: float) -> bool:
    """Print the figures; return whether they stay within the bounds."""
    print(
        f"{asked.scenarios} scenarios on {asked.ranks} ranks in {seconds:.0f} s: "
        f"{60 * asked.scenarios / seconds:.1f} a minute; peak memory of the whole run "
        f"{watcher.peak / MIB:.0f} MiB"
    )
    print(f"{'third':8}{'s/scenario':>12}{'processes':>11}{'open files':>12}{'memory MiB':>12}")
    for name, part in zip(("first", "middle", "last"), found, strict=True):
        print(
            f"{name:8}{part.scenario_s:12.2f}{part.processes:11}{part.files:12.0f}"
            f"{part.memory / MIB:12.1f}"
        )
    first, last = found[0], found[-1]
    drifts = (
        ("processes", last.processes - first.processes, 0.0, ""),
        ("open files", last.files - first.files, FILES_BOUND, ""),
        ("memory", (last.memory - first.memory) / MIB, MEMORY_BOUND / MIB, " MiB"),
    )
    for name, drift, bound, unit in drifts:
        word = "ok" if drift <= bound else "TOO MUCH"
        print(f"drift of {name}: {drift:+.1f}{unit}, bound {bound:+.0f}{unit}: {word}")
    return all(drift <= bound for _, drift, bound, _ in drifts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenarios", type=int, default=300, help="how many")
    parser.add_argument("--ranks", type=int, default=4, help="rank processes")
    parser.add_argument("--faulty", type=float, default=0.1, help="share with a planted fault")
    parser.add_argument("--seed", type=int, default=0, help="chooses the faults")
    asked = parser.parse_args()
    faults = choose(asked.scenarios, asked.ranks, asked.faulty, asked.seed)
    with tempfile.TemporaryDirectory(prefix="dsa-soak-") as name:
        folder = Path(name)
        began = time.monotonic()
        watcher = soak(folder, asked, faults)
        seconds = time.monotonic() - began
        found = results(folder / "runs")
        wrong = list(differences(found, faults, asked.scenarios))
        if not found:
            raise SystemExit((folder / "output").read_text())
        spans = spans_of(found, faults)
        steady = show(asked, watcher, thirds(watcher.samples, asked.scenarios, spans), seconds)
    counts = sorted({due.verdict for due in faults.values()})
    print(f"{len(faults)} planted faults ({', '.join(counts)}): {len(wrong)} not as expected")
    print("\n".join(wrong), end="\n" if wrong else "")
    raise SystemExit(0 if steady and not wrong else 1)


if __name__ == "__main__":
    main()
