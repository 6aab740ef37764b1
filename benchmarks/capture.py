"""What the recorder of layouts costs a training step, as a share of the step.

Run with ``python benchmarks/capture.py [--rows 4096] [--layers 2] [--repeats 5]``. One process
trains a GPT model with absorbed MLA on packs of that many local rows, with the recorder on; what
the training thread spends inside the recorder is timed call by call and set against the step it
happened in. Shares do not depend on what else the machine does at the time, as the difference of
two runs would.

On a CPU the statistics of scores are computed inside the recorder; on a GPU only their launch
would be. The model is as narrow as can be, which makes the step short and the share large.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 0.01


def main() -> int:
    """Measure, print, and fail above one percent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(ROOT))
    with tempfile.TemporaryDirectory() as folder:
        shares, steps, calls = _measure(options, Path(folder))
        size = sum(path.stat().st_size for path in Path(folder).glob("*.jsonl"))
    share = statistics.median(shares)
    print(f"{options.rows} local rows, {options.layers} layers, {len(steps)} steps")
    print(f"step: median {statistics.median(steps):.2f} s")
    for name, spent in calls.items():
        print(f"  {name}: {1e6 * statistics.median(spent):.0f} us a call, {len(spent)} calls")
    print(f"written: {size / (len(steps) + 1):.0f} bytes a microbatch")
    print(f"recorder / step: median {share:.5f}, worst {max(shares):.5f} (limit {LIMIT})")
    return int(share >= LIMIT)


def _measure(
    options: argparse.Namespace, folder: Path
) -> tuple[list[float], list[float], dict[str, list[float]]]:
    import torch

    from harness.production.groups import model_parallel
    from harness.production.providers import spec_provider
    from harness.production.shims import RECOMPUTE_SHIMS, host_shims
    from harness.repro.job.dsa_capture.hooks import watch
    from harness.repro.job.dsa_capture.recorder import Recorder
    from harness.repro.job.dsa_capture.settings import Settings

    calls: dict[str, list[float]] = {}
    recorder = Recorder(Settings(folder=folder))
    for name in ("enter", "leave", "scores", "_backward"):
        setattr(recorder, name, _timed(getattr(recorder, name), calls.setdefault(name, [])))
    watch(lambda: recorder)
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    scenario = _scenario(options)
    provider, name = spec_provider()
    shares, steps = [], []
    with host_shims(RECOMPUTE_SHIMS), model_parallel(scenario.parallel) as groups:
        for step in _steps(scenario, groups, provider, name, options.repeats + 1):
            before = sum(map(sum, calls.values()))
            start = time.perf_counter()
            step()
            steps.append(time.perf_counter() - start)
            shares.append((sum(map(sum, calls.values())) - before) / steps[-1])
    torch.distributed.destroy_process_group()
    # The first step also pays for what is set up once.
    return shares[1:], steps[1:], calls


def _timed(method: Any, spent: list[float]) -> Any:
    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*args, **kwargs)
        finally:
            spent.append(time.perf_counter() - start)

    return timed


def _scenario(options: argparse.Namespace) -> Any:
    from harness.scenario.spec import MicrobatchSpec, ModelSpec, Scenario, TrainingSpec

    half = options.rows // 2
    return Scenario(
        id="benchmark/capture",
        summary="Sizes of the step.",
        model=ModelSpec(
            name="narrow",
            num_layers=options.layers,
            hidden_size=64,
            ffn_hidden_size=64,
            vocab_size=64,
            q_lora_rank=32,
            num_attention_heads=2,
            kv_lora_rank=32,
            qk_head_dim=16,
            qk_pos_emb_head_dim=16,
            v_head_dim=16,
            dsa_indexer_n_heads=2,
            dsa_indexer_head_dim=32,
            dsa_indexer_topk=128,
        ),
        level="model",
        microbatches=(MicrobatchSpec(sequences=(half, options.rows - half)),),
        training=TrainingSpec(
            backward=True, dsa_indexer_loss_coeff=0.01, dsa_indexer_use_sparse_loss=True
        ),
    )


def _steps(scenario: Any, groups: Any, provider: Any, provider_name: str, count: int) -> Any:
    from harness.layout import pack_sequences
    from harness.production.config import transformer_config
    from harness.production.model import absorbed_linear, build_model, run_model, token_inputs

    with absorbed_linear(provider_name):
        config = transformer_config(scenario, modelled=False)
        model = build_model(scenario, config, provider)
        for number in range(count):
            pack = pack_sequences(scenario.microbatches[0].sequences, cp_size=1)
            inputs = token_inputs(
                scenario.model.vocab_size, pack, groups.cp_rank, seed=0, microbatch=number
            )

            def step(inputs: Any = inputs, pack: Any = pack) -> None:
                run_model(model, inputs, pack).float().mean().backward()
                model.zero_grad(set_to_none=True)

            yield step


if __name__ == "__main__":
    sys.exit(main())
