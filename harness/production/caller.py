"""The build's own caller of DSAttention, without its projections.

What a layer does around core attention is part of the path: it may set the microbatch's group and
put it back, and it is where core attention is computed again. ``AbsorbedMLASelfAttention.forward``
runs here as it is, on a stand-in that is given queries and keys instead of projecting them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.experimental_attention_variant.absorbed_mla import (
    AbsorbedMLASelfAttention,
)
from megatron.core.transformer.module import MegatronModule

_SETS_GROUP = "effective_group"
"""Overlay that has the layers take the microbatch's group from their parameters."""


def layer_sets_group(facts: Mapping[str, object], overlays: Collection[str]) -> bool:
    """Whether layers take the group of a microbatch themselves, so that the harness must not."""
    return bool(facts.get("has_dynamic_cp")) or _SETS_GROUP in overlays


class StandInLayer(MegatronModule):
    """An absorbed attention layer around a given core attention, with nothing to project.

    Attributes:
        inputs: ``query``, ``key``, ``qr`` and ``up_v`` of the coming forward.
    """

    cache_mla_latents = False
    recompute_up_proj = False
    attn_mask_type = AttnMaskType.causal
    _checkpointed_attention_forward = AbsorbedMLASelfAttention._checkpointed_attention_forward
    forward = AbsorbedMLASelfAttention.forward

    def __init__(self, core_attention: Any, config: Any) -> None:
        super().__init__(config=config)
        self.core_attention = core_attention
        self.pg_collection = core_attention.pg_collection
        self.inputs: dict[str, torch.Tensor] = {}
        tp_size = max(1, config.tensor_model_parallel_size)
        self.num_attention_heads_per_partition = config.num_attention_heads // tp_size
        self.checkpoint_core_attention = (
            config.recompute_granularity == "selective" and "core_attn" in config.recompute_modules
        )

    def get_query_key_value_tensors(self, *_args: Any, **_kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Return what was given instead of projecting hidden states."""
        return self.inputs["query"], self.inputs["key"], self.inputs["qr"]

    def _get_v_up_weight(self) -> torch.Tensor:
        return self.inputs["up_v"]

    def linear_proj(self, output: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Hand on the output of core attention."""
        return output, None

    def attend(
        self, inputs: Mapping[str, torch.Tensor], up_v: torch.Tensor, params: Any
    ) -> torch.Tensor:
        """Run the layer's forward on given inputs; see ``harness.production.attention``."""
        self.inputs = {**inputs, "up_v": up_v}
        try:
            output, _bias = self(inputs["x"], None, packed_seq_params=params)
        finally:
            self.inputs = {}
        return output
