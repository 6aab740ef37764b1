"""The exact indexer score, in fp32 or fp64, computed by blocks that stay in cache.

``score(row, key) = sum over heads of relu(q_h . k) * w_h``, as in the public DSA indexer of
https://github.com/NVIDIA/Megatron-LM. Products of two bf16 numbers are exact in fp32, so that fp32
differs from the true value by its accumulation alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.reference.precision import full_precision

REFERENCE_DTYPES = {"fp32": torch.float32, "fp64": torch.float64}
"""Spelling in a scenario to torch dtype."""

_SUPER_ROWS = 256
"""Rows upcast at a time, so that bf16 queries of a long rank are never held twice."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreBlocks:
    """Block sizes of the scorer.

    The per-head products of one block are ``rows * heads * keys`` elements. The defaults keep them
    at 4 MiB in fp32 for 32 heads, which stays in a CPU's cache between the three passes over it.
    """

    rows: int
    keys: int

    def __post_init__(self) -> None:
        """Refuse empty blocks."""
        if self.rows < 1 or self.keys < 1:
            raise ValueError(
                f"score blocks need at least one row and one key, found rows={self.rows}, "
                f"keys={self.keys}"
            )

    @classmethod
    def fitting(cls, *, num_heads: int, device: torch.device) -> ScoreBlocks:
        """Return block sizes for a head count and a device."""
        keys, elements = (1024, 1 << 20) if device.type == "cpu" else (8192, 1 << 26)
        return cls(rows=max(1, elements // (max(1, num_heads) * keys)), keys=keys)


def check_inputs(q: Tensor, k: Tensor, w: Tensor) -> None:
    """Refuse operands whose shapes do not belong together.

    Args:
        q: (R, H, D).
        k: (N, D).
        w: (R, H).

    Raises:
        ValueError: naming the operand, the shape expected and the shape found.
    """
    if q.dim() != 3:
        raise ValueError(f"q must be (rows, heads, head_dim), found shape {tuple(q.shape)}")
    if k.dim() != 2 or k.shape[1] != q.shape[2]:
        raise ValueError(
            f"k must be (keys, head_dim={q.shape[2]}), found shape {tuple(k.shape)}; give the "
            "keys in packed order with the single key head squeezed out"
        )
    if w.shape != q.shape[:2]:
        raise ValueError(f"w must be {tuple(q.shape[:2])} like q, found shape {tuple(w.shape)}")


@torch.no_grad()
def exact_scores(
    q: Tensor,
    k: Tensor,
    w: Tensor,
    *,
    dtype: torch.dtype = torch.float32,
    out: Tensor | None = None,
    blocks: ScoreBlocks | None = None,
) -> Tensor:
    """Return the score of every row against every key.

    Besides the result it holds one block of per-head products, ``_SUPER_ROWS`` upcast query rows
    and one block of upcast keys.

    Args:
        q: (R, H, D), any floating dtype.
        k: (N, D).
        w: (R, H) signed head weights, with every scale already in them.
        dtype: ``torch.float32`` or ``torch.float64``, of the arithmetic and the result.
        out: (R, N) of ``dtype`` to write into, any strides.
        blocks: Block sizes; by default fitted to the device.

    Returns:
        (R, N) scores of ``dtype``; no mask is applied.

    Raises:
        ValueError: where shapes or dtypes do not belong together.
    """
    check_inputs(q, k, w)
    if dtype not in REFERENCE_DTYPES.values():
        raise ValueError(f"the reference computes in torch.float32 or torch.float64, not {dtype}")
    num_rows, num_heads, _ = q.shape
    if out is None:
        out = torch.empty(num_rows, k.shape[0], dtype=dtype, device=q.device)
    elif out.shape != (num_rows, k.shape[0]) or out.dtype != dtype:
        raise ValueError(
            f"out must be {(num_rows, k.shape[0])} of {dtype}, found {tuple(out.shape)} of "
            f"{out.dtype}"
        )
    blocks = blocks or ScoreBlocks.fitting(num_heads=num_heads, device=q.device)
    with full_precision():
        for start in range(0, num_rows, _SUPER_ROWS):
            rows = slice(start, start + _SUPER_ROWS)
            _score_rows(q[rows].to(dtype), k, w[rows].to(dtype), out[rows], blocks)
    return out


def _score_rows(q: Tensor, k: Tensor, w: Tensor, out: Tensor, blocks: ScoreBlocks) -> None:
    """Fill ``out`` for a few rows; q and w are upcast already, k is upcast block by block."""
    num_rows, num_heads, head_dim = q.shape
    num_keys = k.shape[0]
    rows_at_once = min(blocks.rows, num_rows)
    keys_at_once = min(blocks.keys, num_keys)
    products = torch.empty(rows_at_once * num_heads * keys_at_once, dtype=q.dtype, device=q.device)
    sums = torch.empty(rows_at_once * keys_at_once, dtype=q.dtype, device=q.device)
    flat_q = q.reshape(num_rows * num_heads, head_dim)
    for key0, key1 in _spans(num_keys, keys_at_once):
        keys = k[key0:key1].to(q.dtype).t()
        for row0, row1 in _spans(num_rows, rows_at_once):
            n, m = row1 - row0, key1 - key0
            block = products[: n * num_heads * m].view(n * num_heads, m)
            torch.mm(flat_q[row0 * num_heads : row1 * num_heads], keys, out=block)
            block.relu_()
            summed = sums[: n * m].view(n, 1, m)
            torch.bmm(w[row0:row1].unsqueeze(1), block.view(n, num_heads, m), out=summed)
            out[row0:row1, key0:key1].copy_(summed.squeeze(1))


def _spans(total: int, step: int) -> Iterator[tuple[int, int]]:
    """Cut ``range(total)`` into pieces of ``step``."""
    for start in range(0, total, max(1, step)):
        yield start, min(start + step, total)


@torch.no_grad()
def row_weights(q: Tensor, w: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Return ``sum_h |w_h| * ||q_h||`` per row, (R,): the row's factor of the score margin."""
    norms = torch.linalg.vector_norm(q.to(dtype), dim=-1)
    return (w.to(dtype).abs() * norms).sum(-1)


@torch.no_grad()
def key_norms(k: Tensor, *, dtype: torch.dtype, step: int = 8192) -> Tensor:
    """Return ``||k||`` per key, (N,), upcasting ``step`` keys at a time."""
    out = torch.empty(k.shape[0], dtype=dtype, device=k.device)
    for start, end in _spans(k.shape[0], step):
        out[start:end] = torch.linalg.vector_norm(k[start:end].to(dtype), dim=-1)
    return out
