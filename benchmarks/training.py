"""Time and peak memory of a model step through the fused path, against backend ``none``.

Run with ``python benchmarks/training.py [--ranks 2] [--layers 4] [--tokens 512] [--repeats 5]``.
One torchrun runs the same step twice, in processes of their own: forward, loss and backward of a
GPT model with absorbed MLA and sparse indexer loss, first with backend ``none``, then with the
cuDNN backend. Printed is, for each rank, the median time of a step and the greatest memory it took
beyond what the process held before it, and both as ratios: what they compare shared one machine at
one time.

On CPU ranks the kernels are models that check every address. Their ratio says what a modelled run
costs next to an unfused one, and nothing about a GPU. Memory is resident memory there, and the
allocator's on a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.runtime.engine import Stage
    from harness.runtime.journal import Journal
    from harness.runtime.task import Task

ROOT = Path(__file__).resolve().parents[1]
TOPIC = "training step"
BACKENDS = ("none", "cudnn")

SCENARIO = """\
id: training/{backend}
summary: One step of a small model, for measuring what it takes.
model: {{base: small, num_layers: {layers}, dsa_indexer_topk: 128}}
level: model
kernels:
  dsa_kernel_backend: {backend}
  modelled: {{cudnn_frontend: "1.25.0", arch: sm90}}
parallel: {{context_parallel_size: {ranks}}}
microbatches: [{{sequences: [{first}, {second}]}}]
values: {{seeds: [{seeds}]}}
training:
  {{backward: true, dsa_indexer_loss_coeff: 0.01, dsa_indexer_use_sparse_loss: true}}
limits: {{time_s: 3600}}
"""


# On the ranks


def measure(task: Task, journal: Journal) -> None:
    """Engine of the benchmark: steps of one model, measured, nothing judged."""
    from harness.production.locate import activate, find_build
    from harness.record.phase import Phase
    from harness.runtime import engine

    journal.phase(Phase.BUILD)
    build = find_build(task.megatron)
    activate(build)
    with engine._stage(task, journal, build) as stage:
        _steps(stage)


def _steps(stage: Stage) -> None:
    from harness.production.config import transformer_config
    from harness.production.groups import model_parallel
    from harness.production.model import absorbed_linear, build_model, run_model, token_inputs
    from harness.record.evidence import NoteEvidence
    from harness.runtime.cases import begin, cases, kernels

    scenario = stage.task.scenario
    config = transformer_config(scenario, modelled=stage.source.modelled)
    with absorbed_linear(stage.provider_name), model_parallel(scenario.parallel) as groups:
        model = build_model(scenario, config, stage.provider)
        stage.recorder.dressers["attention"] = _dress(stage)
        for number, case in enumerate(cases(scenario)):
            begin(stage, case, groups.cp_rank)
            inputs = token_inputs(
                scenario.model.vocab_size,
                case.pack,
                groups.cp_rank,
                seed=case.seed,
                microbatch=case.index,
            )

            def step(inputs: dict[str, Any] = inputs, pack: Any = case.pack) -> None:
                model.zero_grad(set_to_none=True)
                run_model(model, inputs, pack).float().mean().backward()

            with kernels(stage, case), _measured() as taken:
                step()
            if number:
                # The first step warms caches up and lets the allocator grow.
                stage.journal.evidence(NoteEvidence(topic=TOPIC, text=json.dumps(taken)))


def _dress(stage: Stage) -> Callable[[str, Any], Any]:
    """Production branches with modelled kernels, as level ``model`` has them."""
    import torch

    from harness.production.backend import as_production

    def dress(name: str, value: Any) -> Any:
        is_input = name in ("query", "key", "x", "qr") and isinstance(value, torch.Tensor)
        return as_production(value, stage.source) if is_input else value

    return dress


@contextlib.contextmanager
def _measured() -> Iterator[dict[str, float]]:
    """Seconds and peak MiB beyond what is held now, filled in at the end."""
    import torch

    taken: dict[str, float] = {}
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = float(torch.cuda.memory_allocated())
    else:
        Path("/proc/self/clear_refs").write_text("5")
        held = _status_bytes("VmRSS")
    begin = time.perf_counter()
    yield taken
    if on_gpu:
        torch.cuda.synchronize()
        peak = float(torch.cuda.max_memory_allocated())
    else:
        peak = _status_bytes("VmHWM")
    taken["seconds"] = time.perf_counter() - begin
    taken["peak_mib"] = max(0.0, peak - held) / 2**20


def _status_bytes(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return float(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}; this benchmark needs Linux")


# In the launcher


def main() -> int:
    """Run both sides in one torchrun and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=512, help="of the pack, over the group")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--megatron", help="a Megatron-LM checkout")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = _run(Path(folder), options)
    taken = {backend: _by_rank(results[f"training/{backend}"]) for backend in BACKENDS}
    print(f"{options.layers} layers, {options.tokens} tokens, CP {options.ranks}")
    print(f"{'':8}{'seconds a step':^30}{'peak MiB of a step':^30}")
    print(f"{'rank':8}" + f"{'none':>10}{'cudnn':>10}{'ratio':>10}" * 2)
    for rank in sorted(taken["none"]):
        line = f"{rank:<8}"
        for what in ("seconds", "peak_mib"):
            none, cudnn = (taken[backend][rank][what] for backend in BACKENDS)
            line += f"{none:10.2f}{cudnn:10.2f}{cudnn / none if none else float('nan'):10.2f}"
        print(line)
    return 0


def _run(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    sys.path.insert(0, str(ROOT))
    from reports.store import load_run

    unit = 2 * options.ranks
    first = options.tokens * 2 // 3 // unit * unit
    paths = []
    for backend in BACKENDS:
        path = folder / f"{backend}.yaml"
        text = SCENARIO.format(
            backend=backend,
            layers=options.layers,
            ranks=options.ranks,
            first=first,
            second=options.tokens - first,
            seeds=", ".join(str(seed) for seed in range(options.repeats + 1)),
        )
        path.write_text(text)
        paths.append(str(path))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(options.ranks), str(ROOT / "launch" / "run.py")]
    command += ["--scenario", *paths, "--out", str(folder / "runs"), "--isolation", "scenario"]
    command += ["--engine", "training:measure"]
    command += ["--megatron", options.megatron] if options.megatron else []
    found = os.environ.get("PYTHONPATH", "")
    modules = f"{Path(__file__).parent}:{found}".rstrip(":")
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": modules},
        capture_output=True,
        text=True,
        check=False,
    )
    runs = sorted((folder / "runs").iterdir()) if (folder / "runs").exists() else []
    if not runs:
        raise SystemExit(f"the run left no folder:\n{done.stdout}{done.stderr}")
    stored = load_run(runs[0])
    results = {result.id: result for result in stored.results}
    for result in results.values():
        if result.last.fault is not None:
            raise SystemExit(f"{result.id} did not run: {result.last.fault.cause}")
    return results


def _by_rank(result: Any) -> dict[int, dict[str, float]]:
    """Median seconds and peak of each rank; notes are in rank order, equally many each."""
    notes = [json.loads(note.text) for note in result.last.notes if note.topic == TOPIC]
    ranks = [rank.global_rank for rank in result.last.ranks]
    share = len(notes) // len(ranks)
    return {
        rank: {
            what: statistics.median(step[what] for step in notes[n * share : (n + 1) * share])
            for what in ("seconds", "peak_mib")
        }
        for n, rank in enumerate(ranks)
    }


if __name__ == "__main__":
    sys.exit(main())
