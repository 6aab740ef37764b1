"""Instrumented to bare time of a 4-layer model's forward and backward, in one process.

Run with ``python benchmarks/evidence.py [--pairs 9]``. Instrumented is what every run does to
production: the hook table, the recorder and the state before and after the microbatch. Bare is the
same model without any of it. Both take turns, so that what disturbs the machine disturbs both; the
ratio counts, and 1.10 is the aim. What the harness does after a microbatch (reference, comparison,
journal) is no part of it, and neither are collectors that run forwards of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from harness.production import preload  # noqa: F401 (imports Megatron, warnings silenced)
from harness.production.config import transformer_config
from harness.production.groups import model_parallel
from harness.production.hooks import installed
from harness.production.locate import find_build
from harness.production.model import absorbed_linear, build_model, run_model, token_inputs
from harness.production.probes import build_facts
from harness.production.providers import spec_provider
from harness.production.recorder import Recorder
from harness.production.shims import host_shims
from harness.production.state import snapshot
from harness.scenario.rules.lengths import build_pack
from harness.scenario.spec import KernelsSpec, MicrobatchSpec, ModelSpec, Scenario, TrainingSpec

SCENARIO = Scenario(
    id="benchmark/evidence",
    summary="",
    model=ModelSpec(name="small", num_layers=4, num_attention_heads=16),
    level="model",
    kernels=KernelsSpec(dsa_kernel_backend="none"),
    microbatches=(MicrobatchSpec(sequences=(32, 16, 16)),),
    training=TrainingSpec(backward=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9)
    pairs = parser.parse_args().pairs
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, _one_rank(Path(folder)), host_shims():
        provider, name = spec_provider()
        with model_parallel(SCENARIO.parallel), absorbed_linear(name):
            config = transformer_config(SCENARIO, modelled=False)
            step = Step(build_model(SCENARIO, config, provider), config)
            step.bare(), step.instrumented()
            times = [(timed(step.bare), timed(step.instrumented)) for _ in range(pairs)]
    ratios = sorted(instrumented / bare for bare, instrumented in times)
    low, middle, high = statistics.quantiles(ratios, n=4)
    bare = statistics.median(bare for bare, _ in times)
    print(f"4 layers, forward and backward, {pairs} pairs: bare {bare * 1000:.0f} ms")
    print(f"instrumented to bare: {middle:.3f} (quartiles {low:.3f} to {high:.3f}; aim 1.10)")


class Step:
    """One microbatch of the model, with and without the harness's instruments."""

    def __init__(self, model: torch.nn.Module, config: object) -> None:
        self._model, self._config = model, config
        self._pack = build_pack(SCENARIO.microbatches[0], 1)
        self._inputs = token_inputs(SCENARIO.model.vocab_size, self._pack, 0, seed=0, microbatch=0)
        build = find_build()
        self._version, self._facts = build.version, build_facts(build)

    def bare(self) -> None:
        """Forward and backward."""
        self._model.zero_grad(set_to_none=True)
        run_model(self._model, self._inputs, self._pack).float().mean().backward()

    def instrumented(self) -> None:
        """The same, hooked, recorded and with the state looked at on both sides."""
        before = snapshot(self._model, self._config)
        with installed(Recorder(), self._version, self._facts):
            self.bare()
        assert snapshot(self._model, self._config) == before


def timed(run) -> float:
    begin = time.process_time()
    run()
    return time.process_time() - begin


@contextlib.contextmanager
def _one_rank(folder: Path) -> Iterator[None]:
    store = dist.FileStore(str(folder / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
