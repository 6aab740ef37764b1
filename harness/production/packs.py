"""Megatron's ``PackedSeqParams`` for a pack of ``harness.layout``, and local rows of a tensor."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams

from harness.layout import Pack, inverse_permutation, local_runs, rank_segments
from harness.production.boundaries import boundary_lists
from harness.production.given_params import given_params


def packed_seq_params(pack: Pack, *, real_token_mask: torch.Tensor | None = None) -> Any:
    """Describe a pack to Megatron.

    Args:
        pack: The layout.
        real_token_mask: ``[1, rows]`` bool over a rank's local rows, True for real tokens; handed
            over as the attribute that the indexer loss looks for, None to leave it out as the
            released data path does.

    ``cu_seqlens_*`` are those of ``harness.production.boundaries``; maxima are the
    padded ones over whole sequences, before CP, as Megatron's data path gives them.
    """
    given = given_params()
    if given is not None:
        return given

    params = PackedSeqParams(
        qkv_format="thd",
        **boundary_lists(pack),
        max_seqlen_q=pack.max_seqlen_q,
        max_seqlen_kv=pack.max_seqlen_k,
    )
    if real_token_mask is not None:
        params.real_token_mask_q = real_token_mask
    return params


def local_rows(full: torch.Tensor, pack: Pack, cp_rank: int) -> torch.Tensor:
    """Rows of a packed tensor ``[total_q, ...]`` that belong to a rank, in its local order."""
    runs = [full[start : start + length] for start, length in local_runs(pack, cp_rank)]
    return torch.cat(runs, dim=0) if runs else full[:0]


def real_rows(pack: Pack, cp_rank: int) -> torch.Tensor:
    """Mask ``[rows]`` of a rank's local rows that are real tokens."""
    mask = torch.zeros(pack.rows_per_rank, dtype=torch.bool)
    for segment in rank_segments(pack, cp_rank):
        mask[segment.row_start : segment.row_start + segment.valid_rows] = True
    return mask


def to_packed_order(gathered: torch.Tensor, pack: Pack) -> torch.Tensor:
    """Bring rows gathered rank by rank ``[total_k, ...]`` into packed order."""
    index = torch.tensor(inverse_permutation(pack), dtype=torch.int64)
    return gathered.index_select(0, index)
