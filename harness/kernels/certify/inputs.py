"""Seeded arguments of the cases, on the CPU."""

from __future__ import annotations

from typing import Any

import torch

HEAD_DIM = 128
LATENT = 512
DEPTH = 576
SCALE = DEPTH**-0.5


def generator(seed: int = 0) -> torch.Generator:
    """Return a generator of a case of its own."""
    return torch.Generator().manual_seed(seed)


def bf16(seed: int, *shape: int) -> torch.Tensor:
    """Return standard normal numbers in bf16."""
    return torch.randn(*shape, generator=generator(seed)).bfloat16()


def int32(*values: int) -> torch.Tensor:
    """Return a vector."""
    return torch.tensor(values, dtype=torch.int32)


def prefix(*lengths: int) -> torch.Tensor:
    """Return the prefix sums of segment lengths with the leading 0, int32."""
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def batched(rows: int, keys: int, heads: int, *, batch: int = 1) -> dict[str, Any]:
    """Return q (B, rows, heads, 128), k (B, keys, 1, 128) and w (B, rows, heads)."""
    return {
        "q": bf16(1, batch, rows, heads, HEAD_DIM),
        "k": bf16(2, batch, keys, 1, HEAD_DIM),
        "w": bf16(3, batch, rows, heads),
    }


def packed(q_lengths: tuple[int, ...], k_lengths: tuple[int, ...], heads: int) -> dict[str, Any]:
    """Return q, k and w of THD segments with their prefix sums and maxima."""
    rows, keys = sum(q_lengths), sum(k_lengths)
    return {
        "q": bf16(1, rows, heads, HEAD_DIM),
        "k": bf16(2, keys, 1, HEAD_DIM),
        "w": bf16(3, rows, heads),
        "cu_seqlens_q": prefix(*q_lengths),
        "cu_seqlens_k": prefix(*k_lengths),
        "max_seqlen_q": max(q_lengths),
        "max_seqlen_k": max(k_lengths),
    }


def with_room(scores: torch.Tensor, behind: int) -> torch.Tensor:
    """Return scores whose allocation goes on for ``behind`` elements, which stray reads stay in."""
    whole = torch.cat([scores.flatten(), torch.zeros(behind, dtype=scores.dtype)])
    return whole[: scores.numel()].view(scores.shape)


def distinct_ids(rows: int, keys: int, count: int, seed: int = 4) -> torch.Tensor:
    """Return int32 (rows, count) ids below ``keys``, distinct in a row."""
    source = generator(seed)
    drawn = [torch.randperm(keys, generator=source)[:count] for _ in range(rows)]
    return torch.stack(drawn).to(torch.int32)


def slots_of(ids: torch.Tensor, width: int, value: int = -1) -> torch.Tensor:
    """Return ids (..., count) in the first of ``width`` slots."""
    room = (0, width - ids.size(-1))
    return torch.nn.functional.pad(ids, room, value=value).contiguous()


def edited(tensor: torch.Tensor, *edits: tuple[tuple[int, ...], float]) -> torch.Tensor:
    """Return a copy with some elements set."""
    changed = tensor.clone()
    for place, value in edits:
        changed[place] = value
    return changed


def probabilities(seed: int, *shape: int, used: int) -> torch.Tensor:
    """Return fp32 probabilities over the first ``used`` of the last dimension, 0 behind."""
    drawn = torch.rand(*shape, generator=generator(seed)) + 0.05
    drawn[..., used:] = 0.0
    return (drawn / drawn.sum(-1, keepdim=True)).contiguous()
