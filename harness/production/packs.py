"""Megatron's ``PackedSeqParams`` for a pack of ``harness.layout``, and local rows of a tensor."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.packed_seq_params import PackedSeqParams

from harness.layout import Pack, inverse_permutation, local_runs


def packed_seq_params(pack: Pack) -> Any:
    """Describe a pack to Megatron.

    ``cu_seqlens_*`` are int32 of shape ``[num_sequences + 1]``, real and padded; maxima are the
    padded ones over whole sequences, before CP, as Megatron's data path gives them.
    """

    def int32(values: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return PackedSeqParams(
        qkv_format="thd",
        cu_seqlens_q=int32(pack.cu_seqlens_q),
        cu_seqlens_kv=int32(pack.cu_seqlens_k),
        cu_seqlens_q_padded=int32(pack.cu_seqlens_q_padded),
        cu_seqlens_kv_padded=int32(pack.cu_seqlens_k_padded),
        max_seqlen_q=pack.max_seqlen_q,
        max_seqlen_kv=pack.max_seqlen_k,
    )


def local_rows(full: torch.Tensor, pack: Pack, cp_rank: int) -> torch.Tensor:
    """Rows of a packed tensor ``[total_q, ...]`` that belong to a rank, in its local order."""
    runs = [full[start : start + length] for start, length in local_runs(pack, cp_rank)]
    return torch.cat(runs, dim=0) if runs else full[:0]


def to_packed_order(gathered: torch.Tensor, pack: Pack) -> torch.Tensor:
    """Bring rows gathered rank by rank ``[total_k, ...]`` into packed order."""
    index = torch.tensor(inverse_permutation(pack), dtype=torch.int64)
    return gathered.index_select(0, index)
