"""Inputs and references of sparse score recompute."""

from __future__ import annotations

import torch
from training_inputs import distinct_ids

SCALE = 0.04


def inputs(
    batch=1, rows=3, keys=40, heads=64, depth=576, slots=128, used=30, seed=0, kind="attention"
):
    """Distinct local ids in the first ``used`` slots, -1 behind them."""
    generator = torch.Generator().manual_seed(seed)
    depth = depth if kind == "attention" else 128
    q = torch.randn(batch, rows, heads, depth, generator=generator).bfloat16()
    k = torch.randn(batch, keys, depth, generator=generator).bfloat16()
    per_head = torch.randn(batch, rows, heads, generator=generator)
    if kind == "indexer":
        per_head = (per_head * 0.01).bfloat16()
    ids = torch.full((batch, rows, slots), -1, dtype=torch.int32)
    ids[..., :used] = distinct_ids(batch * rows, keys, used, generator).view(batch, rows, used)
    return q, k, per_head, ids


def run(namespace, kind, tensors, lengths=None, **keywords):
    if lengths is not None:
        keywords["topk_length"] = lengths
    if kind == "attention":
        return namespace.sparse_attn_score_recompute_wrapper(*tensors, SCALE, **keywords)["target"]
    return namespace.sparse_indexer_score_recompute_wrapper(*tensors, **keywords)["predict"]


def sums(kind, q, keys, per_head):
    """fp64 unnormalised scores of one row over given keys: (H, D), (K, D), (H,)."""
    dots = q.double() @ keys.double().T
    if kind == "attention":
        return torch.exp(dots * SCALE - per_head.double().unsqueeze(1)).sum(0)
    return torch.exp((dots.relu() * per_head.double().unsqueeze(1)).sum(0))


def reference(kind, q, k, per_head, ids):
    """Normalised over valid ids (local), 0 elsewhere."""
    out = torch.zeros(ids.shape, dtype=torch.float64)
    for b in range(ids.shape[0]):
        for r in range(ids.shape[1]):
            valid = (ids[b, r] >= 0) & (ids[b, r] < k.shape[1])
            if bool(valid.any()):
                made = sums(kind, q[b, r], k[b][ids[b, r, valid].long()], per_head[b, r])
                out[b, r, valid] = made / made.sum()
    return out


def full_lengths(ids):
    return (ids >= 0).sum(-1).to(torch.int32)
