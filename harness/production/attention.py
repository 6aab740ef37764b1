"""Level ``attention``: Megatron's DSAttention with its indexer over real CP groups."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.gpt.experimental_attention_variant_module_specs import (
    get_dsa_module_spec_for_backend,
)
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.spec_utils import build_module

from harness.layout import Pack, local_runs
from harness.production.config import DTYPES
from harness.production.groups import Groups
from harness.production.inputs import InputSource
from harness.production.packs import packed_seq_params
from harness.scenario.spec import ModelSpec, Scenario

WEIGHT_SEED = 1234
"""Parameters are the same on every rank and for every input seed."""


def build_attention(
    scenario: Scenario, config: Any, groups: Groups, provider: Any, *, layer_number: int = 1
) -> Any:
    """Construct DSAttention as the layer spec does, with parameters of ``WEIGHT_SEED``."""
    spec = get_dsa_module_spec_for_backend(config, provider).submodules.core_attention
    model = scenario.model
    torch.manual_seed(WEIGHT_SEED + layer_number)
    return build_module(
        spec,
        config=config,
        layer_number=layer_number,
        attn_mask_type=AttnMaskType.causal,
        attention_type="self",
        softmax_scale=(model.qk_head_dim + model.qk_pos_emb_head_dim) ** -0.5,
        cp_comm_type=scenario.parallel.cp_comm_type,
        pg_collection=groups.collection,
    )


def attention_inputs(
    model: ModelSpec, source: InputSource, pack: Pack, cp_rank: int
) -> dict[str, torch.Tensor]:
    """Generate one packed stream's local inputs in absorbed-MLA layout.

    Returns:
        ``query [rows, 1, heads, 576]``, ``key [rows, 1, 1, 576]``, ``x [rows, 1, hidden]``,
        ``qr [rows, 1, q_lora_rank]`` for the rank's rows in local order (dims for rank 512 + 64).
    """
    runs = local_runs(pack, cp_rank)
    absorbed = model.kv_lora_rank + model.qk_pos_emb_head_dim
    shapes = {
        "query": (1, model.num_attention_heads, absorbed),
        "key": (1, 1, absorbed),
        "x": (1, model.hidden_size),
        "qr": (1, model.q_lora_rank),
    }
    return {name: source.rows(name, shape, runs) for name, shape in shapes.items()}


def up_v_weight(model: ModelSpec, dtype: str) -> torch.Tensor:
    """Latent-to-value projection ``[heads, v_head_dim, kv_lora_rank]``, the same on every rank."""
    generator = torch.Generator().manual_seed(WEIGHT_SEED)
    shape = (model.num_attention_heads, model.v_head_dim, model.kv_lora_rank)
    weight = torch.randn(shape, generator=generator) * model.kv_lora_rank**-0.5
    return weight.to(DTYPES[dtype])


def run_attention(
    attention: Any,
    inputs: dict[str, torch.Tensor],
    up_v: torch.Tensor,
    pack: Pack | None,
) -> torch.Tensor:
    """One forward of DSAttention.

    Args:
        attention: Module of ``build_attention``.
        inputs: Local inputs, ``[rows, batch, ...]``.
        up_v: Projection of ``up_v_weight``.
        pack: The pack in THD layout, None for an unpacked (SBHD) batch.

    Returns:
        Output ``[rows, batch, heads * v_head_dim]``.
    """
    return attention(
        inputs["query"],
        inputs["key"],
        None,
        None,
        inputs["x"],
        inputs["qr"],
        attn_mask_type=AttnMaskType.causal,
        packed_seq_params=packed_seq_params(pack) if pack is not None else None,
        up_v_weight=up_v,
    )
