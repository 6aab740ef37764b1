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
from harness.production.caller import StandInLayer
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
    if torch.cuda.is_available():
        torch.manual_seed(WEIGHT_SEED + layer_number)
    else:
        # The generators of absent devices would each note the stack for when they are set up.
        torch.default_generator.manual_seed(WEIGHT_SEED + layer_number)
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
    scenario: Scenario, source: InputSource, pack: Pack, groups: Groups
) -> dict[str, torch.Tensor]:
    """Generate one packed stream's local inputs in absorbed-MLA layout.

    Returns:
        ``query [rows, 1, heads, 576]``, ``key [rows, 1, 1, 576]``, ``x [rows, 1, hidden]``,
        ``qr [rows, 1, q_lora_rank]`` for the rank's rows in local order (dims for rank 512 + 64).
        Query heads are those of the tensor-parallel rank; under sequence parallelism it has its
        share of the rows of x and qr, as between layers.
    """
    model = scenario.model
    runs = local_runs(pack, groups.cp_rank)
    absorbed = model.kv_lora_rank + model.qk_pos_emb_head_dim
    shapes = {
        "query": (1, model.num_attention_heads, absorbed),
        "key": (1, 1, absorbed),
        "x": (1, model.hidden_size),
        "qr": (1, model.q_lora_rank),
    }
    inputs = {name: source.rows(name, shape, runs) for name, shape in shapes.items()}
    inputs["query"] = shard_of(inputs["query"], groups, dim=2)
    if scenario.parallel.sequence_parallel:
        for name in ("x", "qr"):
            inputs[name] = shard_of(inputs[name], groups, dim=0)
    return inputs


def shard_of(tensor: torch.Tensor, groups: Groups, *, dim: int) -> torch.Tensor:
    """Return the tensor-parallel rank's share of a tensor along ``dim``, contiguous."""
    return tensor.chunk(groups.tp_size, dim=dim)[groups.tp_rank].contiguous()


def output_gradient(
    model: ModelSpec, source: InputSource, pack: Pack, groups: Groups
) -> torch.Tensor:
    """Gradient of one stream's output ``[rows, 1, heads * v_head_dim]``, the rank's heads."""
    width = model.num_attention_heads * model.v_head_dim
    rows = source.rows("upstream", (1, width), local_runs(pack, groups.cp_rank))
    return shard_of(rows, groups, dim=2)


def up_v_weight(model: ModelSpec, dtype: str, groups: Groups) -> torch.Tensor:
    """Latent-to-value projection ``[heads, v_head_dim, kv_lora_rank]`` of the rank's heads."""
    generator = torch.Generator().manual_seed(WEIGHT_SEED)
    shape = (model.num_attention_heads, model.v_head_dim, model.kv_lora_rank)
    weight = torch.randn(shape, generator=generator) * model.kv_lora_rank**-0.5
    return shard_of(weight.to(DTYPES[dtype]), groups, dim=0)


def run_attention(
    attention: Any,
    inputs: dict[str, torch.Tensor],
    up_v: torch.Tensor,
    pack: Pack | None,
    *,
    real_token_mask: torch.Tensor | None = None,
    layer: StandInLayer | None = None,
    given_group: tuple[int, Any] | None = None,
) -> torch.Tensor:
    """One forward of DSAttention.

    Args:
        attention: Module of ``build_attention``.
        inputs: Local inputs, ``[rows, batch, ...]``.
        up_v: Projection of ``up_v_weight``.
        pack: The pack in THD layout, None for an unpacked (SBHD) batch.
        real_token_mask: ``[1, rows]`` mask of real rows to hand over, None for none.
        layer: What stands in for the layer around it, None to call it directly.
        given_group: The microbatch's CP size and group, as a Dynamic CP data path hands them over.

    Returns:
        Output ``[rows, batch, heads * v_head_dim]``.
    """
    packed = None
    if pack is not None:
        packed = packed_seq_params(pack, real_token_mask=real_token_mask)
        if given_group is not None:
            packed.local_cp_size, packed.cp_group = given_group
    if layer is not None:
        return layer.attend(inputs, up_v, packed)
    return attention(
        inputs["query"],
        inputs["key"],
        None,
        None,
        inputs["x"],
        inputs["qr"],
        attn_mask_type=AttnMaskType.causal,
        packed_seq_params=packed,
        up_v_weight=up_v,
    )
