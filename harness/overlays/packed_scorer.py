"""Scores and selects keys of any pack in one THD call, at any context-parallel size.

A rank's local rows are the front and back half of each sequence; every half is a segment of the
call, with the keys from its sequence's first to the last one that its last row may see. A segment
is never cut shorter where its sequence has fewer keys than that: the mask of the kernel is aligned
by lengths, and top-k stops at each row's own number of keys. Without context parallelism the
caller's own tensors and boundaries go to the kernel as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """What the THD kernel is given for one rank.

    Attributes:
        keys: ``[keys of all segments, 1, dim]``.
        cu_seqlens_q: int32 ``[segments + 1]``.
        cu_seqlens_k: int32 ``[segments + 1]``.
        longest_q: Rows of the longest segment.
        longest_k: Keys of the longest segment.
    """

    keys: torch.Tensor
    cu_seqlens_q: torch.Tensor
    cu_seqlens_k: torch.Tensor
    longest_q: int
    longest_k: int


def whole_sequences(
    keys: torch.Tensor,
    boundaries_q: torch.Tensor,
    boundaries_k: torch.Tensor,
    longest_q: int,
    longest_k: int,
    *,
    device: torch.device,
) -> Segments:
    """Return the segments without context parallelism: each sequence, on the caller's tensors."""
    return Segments(
        keys=keys,
        cu_seqlens_q=_int32(boundaries_q, device),
        cu_seqlens_k=_int32(boundaries_k, device),
        longest_q=longest_q,
        longest_k=longest_k,
    )


def halves(
    keys: torch.Tensor,
    boundaries_q: torch.Tensor,
    boundaries_k: torch.Tensor,
    longest_q: int,
    *,
    cp_size: int,
    cp_rank: int,
    rows: int,
    device: torch.device,
) -> Segments:
    """Return the front and back segment of each sequence on one rank, without a host read.

    Args:
        keys: ``[keys, 1, dim]`` in packed order.
        boundaries_q: ``[sequences + 1]`` padded boundaries of the queries, over all ranks.
        boundaries_k: The same of the keys.
        longest_q: Longest query sequence, over all ranks.
        cp_size: Ranks.
        cp_rank: This one.
        rows: Local rows of the rank, tail included.
        device: Of the queries, where the boundaries are wanted.
    """
    q = boundaries_q.to(device=device, dtype=torch.int64)
    lengths = q.diff()
    half = lengths // (2 * cp_size)
    # Position behind the last row of each half: as many keys as that row may see.
    seen = torch.stack(((cp_rank + 1) * half, lengths - cp_rank * half), dim=1).flatten()
    begins = boundaries_k.to(device=device, dtype=torch.int64)[:-1].repeat_interleave(2)
    # All halves of a rank together see each key of its rows once, and one half of them twice; the
    # rows bound that on the host, and what is too much becomes a run that no segment owns.
    bound = rows * cp_size + rows // 2
    spare = (bound - seen.sum()).reshape(1)
    counts = torch.cat((seen, spare))
    firsts = torch.cat((begins, torch.zeros_like(spare))) - (counts.cumsum(0) - counts)
    source = firsts.repeat_interleave(counts, output_size=bound)
    source = source + torch.arange(bound, device=device)
    longest_half = longest_q // (2 * cp_size)
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    half_rows = half.repeat_interleave(2)
    return Segments(
        keys=keys.index_select(0, source.clamp(max=keys.size(0) - 1)),
        cu_seqlens_q=torch.cat((zero, half_rows.cumsum(0))).to(torch.int32),
        cu_seqlens_k=torch.cat((zero, seen.cumsum(0))).to(torch.int32),
        longest_q=longest_half,
        longest_k=max((cp_rank + 1) * longest_half, longest_q - cp_rank * longest_half),
    )


def owned_rows(cu_seqlens_q: torch.Tensor, rows: int) -> torch.Tensor:
    """Mask ``[rows]`` of local rows that a segment owns; the rest lies behind all of them."""
    return torch.arange(rows, device=cu_seqlens_q.device) < cu_seqlens_q[-1]


def select(
    build: Any,
    q: torch.Tensor,
    w: torch.Tensor,
    segments: Segments,
    starts: torch.Tensor,
    ends: torch.Tensor,
    topk: int,
    *,
    with_scores: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Score all segments in one call and select each row's keys.

    Args:
        build: Megatron's cuDNN module: its kernels, ratio, tie-break and chunking.
        q: ``[rows, heads, dim]``.
        w: ``[rows, heads]``.
        segments: Of ``whole_sequences`` or ``halves``.
        starts: ``[rows]`` first key of each row, in packed ids.
        ends: ``[rows]`` key behind each row's last.
        topk: Keys to select.
        with_scores: Whether the scores of the selected keys are wanted.

    Returns:
        Packed ids ``[1, rows, topk]`` int32, -1 for an empty slot, and their scores or None. Rows
        that no sequence owns select nothing.
    """
    rows, width = q.size(0), segments.longest_k
    if width == 0:
        return _nothing(q, topk, with_scores)
    scores = build._cudnn_dsa.indexer_forward_wrapper(
        q,
        segments.keys,
        w,
        ratio=build._INDEXER_RATIO,
        sm_scale=build._INDEXER_SOFTMAX_SCALE,
        cu_seqlens_q=segments.cu_seqlens_q,
        cu_seqlens_k=segments.cu_seqlens_k,
        max_seqlen_q=segments.longest_q,
        max_seqlen_k=width,
    )["scores"]
    owned = owned_rows(segments.cu_seqlens_q, rows)
    visible = (ends - starts).clamp(min=0, max=width) * owned
    first, kept = starts.to(torch.int32).unsqueeze(1), min(topk, width)
    if kept == width:
        # Every key of a row is due, so that none has to be ranked.
        picks = torch.arange(width, dtype=torch.int32, device=q.device).expand(rows, width)
        values = scores if with_scores else None
    else:
        picks, values = _ranked(build, scores, visible, kept, with_scores=with_scores)
    due = (picks >= 0) & (picks < visible.unsqueeze(1))
    picks = torch.where(due, picks + first, torch.full_like(picks, -1))
    if values is not None:
        values = values.unsqueeze(0)
    padded: tuple[torch.Tensor, torch.Tensor | None] = build._pad_topk_result(
        picks.unsqueeze(0), values, topk
    )
    return padded


def _ranked(
    build: Any, scores: torch.Tensor, visible: torch.Tensor, kept: int, *, with_scores: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    biased = build._use_dense_indexer_topk_tie_break(scores, kept)
    if biased:
        scores = build._add_indexer_topk_tie_break(scores, inplace=True)
    found = build._indexer_top_k_wrapper_chunked(
        scores,
        visible.to(torch.int32).contiguous(),
        topk_k=kept,
        return_topk_scores=with_scores,
    )
    picks, values = found["indices"], found["values"] if with_scores else None
    if biased and values is not None:
        values = build._remove_indexer_topk_tie_break(values, picks, scores.size(1))
    return picks, values


def _nothing(
    q: torch.Tensor, topk: int, with_scores: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    shape = (1, q.size(0), topk)
    picks = torch.full(shape, -1, dtype=torch.int32, device=q.device)
    low = torch.finfo(torch.float32).min
    return picks, torch.full(shape, low, device=q.device) if with_scores else None


def _int32(boundaries: torch.Tensor, device: torch.device) -> torch.Tensor:
    return boundaries.to(device=device, dtype=torch.int32).contiguous()
