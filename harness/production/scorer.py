"""Level ``scorer``: the dispatcher's hooks on synthetic q, k and weights, without collectives.

Bounds, positions and flags come from Megatron's own layout and masking functions, as
``DSAttention.forward`` derives them; only the tensors are synthetic. Any context-parallel size and
any subset of its logical ranks runs on any number of real ranks.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.experimental_attention_variant import (
    dsa,
    dsa_kernels,
    dsa_layout,
    dsa_masking,
)

from harness.layout import Pack, local_runs
from harness.production.inputs import InputSource, indexer_weight_scale
from harness.production.packs import packed_seq_params
from harness.scenario.spec import ModelSpec

_PLAIN = "varlen_is_plain_causal"
_BLOCK_SIZE = 8192
"""DSAttention's default ``fused_indexer_block_size``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScorerInputs:
    """Synthetic indexer tensors of one logical rank.

    Attributes:
        q: ``[rows, batch, heads, dim]``.
        k: ``[keys, batch, dim]`` in packed order, all keys of the group.
        weights: ``[rows, batch, heads]``.
    """

    q: torch.Tensor
    k: torch.Tensor
    weights: torch.Tensor


def scorer_inputs(
    model: ModelSpec, sources: tuple[InputSource, ...], pack: Pack, cp_rank: int
) -> ScorerInputs:
    """Generate the tensors of one logical rank; one source per sequence of an unpacked batch."""
    heads, dim = model.dsa_indexer_n_heads, model.dsa_indexer_head_dim
    rows = local_runs(pack, cp_rank)
    keys = [(0, pack.total_k)]
    scale = indexer_weight_scale(heads, dim)
    return ScorerInputs(
        q=torch.stack([source.rows("q", (heads, dim), rows) for source in sources], dim=1),
        k=torch.stack([source.rows("k", (dim,), keys) for source in sources], dim=1),
        weights=torch.stack(
            [source.rows("weights", (heads,), rows, scale) for source in sources], dim=1
        ),
    )


@torch.no_grad()
def run_scorer(
    config: Any,
    inputs: ScorerInputs,
    pack: Pack,
    cp_rank: int,
    *,
    packed: bool = True,
    explicit_key_positions: bool = False,
) -> torch.Tensor:
    """Score and select on one logical rank as DSAttention would.

    Args:
        config: Megatron's configuration, backend set.
        inputs: Tensors of ``scorer_inputs``.
        pack: The pack (for an unpacked batch, the pack of one of its equal sequences).
        cp_rank: Logical rank in ``0 .. pack.cp_size - 1``.
        packed: THD layout; False for SBHD.
        explicit_key_positions: Hand over custom key positions, which must be declined.

    Returns:
        Selected keys ``[batch, rows, topk]``, packed key ids, -1 for an empty slot.
    """
    psp = packed_seq_params(pack) if packed else None
    starts, ends = _bounds(inputs, pack, cp_rank, psp)
    key_positions = (
        torch.arange(inputs.k.size(0), device=inputs.k.device) if explicit_key_positions else None
    )
    selected = _fused(config, inputs, pack, cp_rank, psp, (starts, ends, key_positions))
    if selected is None:
        _scores, selected = dsa.fused_qk_topk_naive(
            inputs.q,
            inputs.k,
            inputs.weights,
            config.dsa_indexer_topk,
            varlen_starts=starts,
            varlen_ends=ends,
            key_positions=key_positions,
            use_relu=config.dsa_indexer_scoring_relu,
        )
    return selected


def _bounds(
    inputs: ScorerInputs, pack: Pack, cp_rank: int, psp: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    rows, keys = inputs.q.size(0), inputs.k.size(0)
    positions = None
    if psp is not None and pack.cp_size > 1:
        positions = _query_positions(pack, cp_rank, psp, rows, inputs.q.device)
    _mask, bounds, _plain = dsa_masking.build_dsattention_forward_mask(
        sq=rows,
        skv=keys,
        b=inputs.q.size(1),
        device=inputs.q.device,
        cp_size=pack.cp_size,
        cp_rank=cp_rank,
        cp_comm_type="allgather",
        cp_group=None,
        attn_mask_type=AttnMaskType.causal,
        attention_mask=None,
        position_ids=None,
        packed_seq_params=psp,
        packed_query_positions=positions,
    )
    starts, ends, _key_positions = bounds
    return starts, ends


def _query_positions(
    pack: Pack, cp_rank: int, psp: Any, rows: int, device: torch.device
) -> torch.Tensor:
    single = pack.num_sequences == 1
    cu_seqlens_q, cu_seqlens_kv = dsa_layout.get_packed_qk_cu_seqlens(psp)
    positions, _reorder = dsa_layout.build_packed_allgather_cp_query_positions_and_key_reorder(
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_kv=cu_seqlens_kv,
        cp_size=pack.cp_size,
        cp_rank=cp_rank,
        device=device,
        local_output_size=rows,
        key_local_output_size=pack.total_k // pack.cp_size,
        global_output_size=pack.total_k,
        query_cu_seqlens_cover_output=single and pack.max_seqlen_q == rows * pack.cp_size,
        key_cu_seqlens_cover_output=single and pack.max_seqlen_k == pack.total_k,
    )
    return positions


def _fused(
    config: Any,
    inputs: ScorerInputs,
    pack: Pack,
    cp_rank: int,
    psp: Any,
    bounds: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
) -> torch.Tensor | None:
    """Ask the dispatcher; None when no backend is configured or it declined."""
    starts, ends, key_positions = bounds
    if not dsa_kernels.use_fused_dsa_kernels(config):
        return None
    kernel_bounds = dsa_masking.build_fused_indexer_varlen_bounds(
        sq=inputs.q.size(0),
        skv=inputs.k.size(0),
        device=inputs.q.device,
        mask=None,
        varlen_starts=starts,
        varlen_ends=ends,
        key_positions=key_positions,
    )
    if kernel_bounds is None:
        return None
    # Builds with a scoring plan are told of packs at any cp_size, and of plain causal bounds.
    plans = _PLAIN in inspect.signature(dsa_kernels.run_fused_qk_topk).parameters
    by_segments = psp is not None and (plans or pack.cp_size > 1)
    result = dsa_kernels.run_fused_qk_topk(
        config,
        inputs.q,
        inputs.k,
        inputs.weights,
        config.dsa_indexer_topk,
        *kernel_bounds,
        block_size=_BLOCK_SIZE,
        use_relu=config.dsa_indexer_scoring_relu,
        use_local_indexer_varlen=by_segments and key_positions is None,
        single_packed_thd_sequence=by_segments and pack.num_sequences == 1,
        local_packed_cp_rank=cp_rank,
        local_packed_cp_query_start=0,
        local_packed_cp_query_len=inputs.q.size(0),
        packed_seq_params=psp,
        cp_size=pack.cp_size,
        **({_PLAIN: psp is None and pack.cp_size == 1} if plans else {}),
    )
    return None if result is None else result[0]
