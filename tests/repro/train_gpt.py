"""A training job as a customer has it: Megatron's GPT model over CPU ranks, packs that change.

The job knows nothing of the recorder. It is switched on by the environment alone:

    PYTHONPATH=harness/repro/job DSA_HARNESS_CAPTURE=DIR python tests/repro/train_gpt.py --die-at 3
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import signal
import sys
import tempfile
from pathlib import Path

MODEL = {
    "num_layers": 2,
    "hidden_size": 64,
    "ffn_hidden_size": 64,
    "vocab_size": 64,
    "q_lora_rank": 32,
    "num_attention_heads": 4,
    "v_head_dim": 16,
    "dsa_indexer_n_heads": 8,
}
PACKS = ((64, 32), (48,), (30, 18, 16), (96, 8), (64, 64))
"""Lengths of the sequences of each microbatch; [30, 18, 16] are padded."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--die-at", type=int, default=-1, help="microbatch")
    parser.add_argument("--die-rank", type=int, default=2)
    parser.add_argument("--recompute", action="store_true")
    options = parser.parse_args()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["harness.production.preload"])
    with tempfile.TemporaryDirectory() as folder:
        arguments = (options, str(Path(folder, "store")))
        ranks = [
            context.Process(target=train, args=(rank, *arguments)) for rank in range(options.ranks)
        ]
        for rank in ranks:
            rank.start()
        died = False
        while any(rank.is_alive() for rank in ranks):
            for rank in ranks:
                rank.join(0.05)
            died = any(rank.exitcode not in (None, 0) for rank in ranks)
            if died:
                # What torchrun does when a worker dies.
                for rank in ranks:
                    rank.terminate()
    for number, rank in enumerate(ranks):
        sys.stdout.write(f"rank {number} ended with {rank.exitcode}\n")
    return int(died)


def train(rank: int, options: argparse.Namespace, store: str) -> None:
    import torch

    assert importlib.util.find_spec("harness") is not None
    from harness.production.groups import model_parallel
    from harness.production.providers import spec_provider
    from harness.production.shims import RECOMPUTE_SHIMS, host_shims

    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo",
        store=torch.distributed.FileStore(store, options.ranks),
        rank=rank,
        world_size=options.ranks,
    )
    scenario = _scenario(options)
    provider, name = spec_provider()
    with host_shims(RECOMPUTE_SHIMS), model_parallel(scenario.parallel) as groups:
        _train(scenario, groups, provider, name, options)
    torch.distributed.destroy_process_group()


def _scenario(options: argparse.Namespace):
    from harness.scenario.spec import (
        MicrobatchSpec,
        ModelSpec,
        ParallelSpec,
        Scenario,
        TrainingSpec,
        ValuesSpec,
    )

    return Scenario(
        id="train/gpt",
        summary="Sizes of the job.",
        model=ModelSpec(name="two-layers", **MODEL),
        level="model",
        parallel=ParallelSpec(context_parallel_size=options.ranks),
        microbatches=tuple(MicrobatchSpec(sequences=pack) for pack in PACKS),
        training=TrainingSpec(
            backward=True,
            dsa_indexer_loss_coeff=0.5,
            dsa_indexer_use_sparse_loss=True,
            recompute="full" if options.recompute else "none",
        ),
        values=ValuesSpec(dtype="bf16"),
    )


def _train(scenario, groups, provider, provider_name: str, options: argparse.Namespace) -> None:
    import torch

    from harness.layout import pack_sequences
    from harness.production.config import transformer_config
    from harness.production.model import absorbed_linear, build_model, run_model, token_inputs

    with absorbed_linear(provider_name):
        config = transformer_config(scenario, modelled=False)
        model = build_model(scenario, config, provider)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for number, pack in enumerate(PACKS):
            packed = pack_sequences(pack, cp_size=groups.cp_size)
            inputs = token_inputs(
                scenario.model.vocab_size, packed, groups.cp_rank, seed=0, microbatch=number
            )
            if number == options.die_at and groups.cp_rank == options.die_rank:
                _die_in_attention(model)
            loss = run_model(model, inputs, packed).float().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


def _die_in_attention(model) -> None:
    """Fault inside the last layer's attention, as a kernel would."""
    from megatron.core.transformer.experimental_attention_variant import dsa_masking

    build = dsa_masking.build_dsattention_forward_mask
    calls = []

    def fault(*args, **kwargs):
        calls.append(1)
        if len(calls) == MODEL["num_layers"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        return build(*args, **kwargs)

    dsa_masking.build_dsattention_forward_mask = fault


if __name__ == "__main__":
    sys.exit(main())
