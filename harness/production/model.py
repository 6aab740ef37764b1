"""Level ``model``: GPT layers with absorbed MLA and DSA, embedding, loss and backward."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
    get_transformer_layer_with_experimental_attention_variant_spec,
)
from megatron.core.tensor_parallel.random import (
    initialize_rng_tracker,
    model_parallel_cuda_manual_seed,
)
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

from harness.layout import Pack
from harness.production.attention import WEIGHT_SEED
from harness.production.packs import local_rows, packed_seq_params
from harness.production.providers import DuplicatedLinear
from harness.scenario.spec import Scenario

_ABSORBED = "megatron.core.transformer.experimental_attention_variant.absorbed_mla"


@contextlib.contextmanager
def absorbed_linear(provider_name: str) -> Iterator[tuple[str, ...]]:
    """Give absorbed MLA the linear class it compares against where Transformer Engine is absent.

    Yields:
        Names of shims in use, for the record.
    """
    if provider_name != "local":
        yield ()
        return
    module: Any = importlib.import_module(_ABSORBED)
    original = module.TELinear
    module.TELinear = DuplicatedLinear
    try:
        yield ("absorbed_mla.TELinear",)
    finally:
        module.TELinear = original


def seed_random_state() -> None:
    """Give Megatron the random state of tensor parallelism that its embedding asks for.

    Nothing draws from it in a forward, since every dropout is 0; without a GPU there is no such
    state to keep, so Megatron's own tracker for inference, which keeps none, stands in.
    """
    if torch.cuda.is_available():
        model_parallel_cuda_manual_seed(WEIGHT_SEED, force_reset_rng=True)
    else:
        initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)


def build_model(scenario: Scenario, config: Any, provider: Any) -> Any:
    """Construct the GPT model with parameters that every rank and CP size shares."""
    layers = get_transformer_layer_with_experimental_attention_variant_spec(config, provider)
    block = TransformerBlockSubmodules(
        layer_specs=layers, layer_norm=provider.layer_norm(rms_norm=True, for_qk=False)
    )
    seed_random_state()
    torch.manual_seed(WEIGHT_SEED)
    model = GPTModel(
        config,
        block,
        vocab_size=scenario.model.vocab_size,
        max_sequence_length=max(sum(mb.sequences) for mb in scenario.microbatches),
        position_embedding_type="rope",
    )
    return model.train()


def token_inputs(
    vocab_size: int, pack: Pack, cp_rank: int, *, seed: int, microbatch: int, stream: int = 0
) -> dict[str, torch.Tensor]:
    """Local token ids, positions and labels ``[1, rows]`` of a rank; labels are the next tokens.

    Args:
        vocab_size: Ids lie below it.
        pack: Layout of the microbatch.
        cp_rank: Rank whose rows are returned.
        seed: Seed of the inputs.
        microbatch: Number of the microbatch.
        stream: Number of the pack among those that run side by side.
    """
    generator = torch.Generator().manual_seed(1_000_003 * seed + microbatch + 10_007 * stream)
    tokens = torch.randint(0, vocab_size, (pack.total_q,), generator=generator)
    positions = torch.arange(pack.total_q)
    whole = {"input_ids": tokens, "position_ids": positions, "labels": torch.roll(tokens, -1)}
    return {
        name: local_rows(values.unsqueeze(1), pack, cp_rank).transpose(0, 1).contiguous()
        for name, values in whole.items()
    }


def run_model(
    model: Any,
    inputs: dict[str, torch.Tensor],
    pack: Pack | None,
    *,
    real_token_mask: torch.Tensor | None = None,
    given_group: tuple[int, Any] | None = None,
) -> torch.Tensor:
    """One forward; returns the per-token loss ``[batch, rows]``.

    Args:
        model: Of ``build_model``.
        inputs: Of ``token_inputs``.
        pack: The pack in THD layout, None for an unpacked (SBHD) batch.
        real_token_mask: ``[1, rows]`` mask of real rows to hand over, None for none.
        given_group: The microbatch's CP size and group, as a Dynamic CP data path hands them over.
    """
    packed = None
    if pack is not None:
        packed = packed_seq_params(pack, real_token_mask=real_token_mask)
        if given_group is not None:
            packed.local_cp_size, packed.cp_group = given_group
    return model(
        inputs["input_ids"],
        inputs["position_ids"],
        None,
        labels=inputs["labels"],
        packed_seq_params=packed,
    )
