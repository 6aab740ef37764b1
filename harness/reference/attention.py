"""Attention in absorbed MLA layout over given keys: values, and gradients in closed form.

All heads share one key (576 numbers: a latent of 512 and 64 rotary ones), and a value is the first
512 numbers of its key. Per row and head, over the keys n that the row attends to:

    s_n = scale * q . k_n,   p = softmax(s),   o = sum_n p_n v_n,   output = up_v o

Written from the DeepSeek-V2 and V3.2 reports (https://arxiv.org/abs/2405.04434 for the absorbed
form, https://github.com/deepseek-ai/DeepSeek-V3.2-Exp for the selection). Whether the keys are
selected ones or all visible ones is the support's affair.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from harness.reference.expected import Expected
from harness.reference.precision import full_precision
from harness.reference.scores import REFERENCE_DTYPES
from harness.reference.support import Block, Support

LATENT_DIM = 512
"""``kv_lora_rank`` of the models with DSA."""

CHUNK_BYTES = 64 << 20
"""Keys and probabilities held at a time; more for rows that exceed it alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionOperands:
    """What some rows attend with. Any floating dtype, all on one device.

    Attributes:
        query: (R, H, D) rows, with the key up-projection absorbed.
        key: (N, D) all keys of the pack, in packed order.
        softmax_scale: Factor on the products.
        up_v: (H, V, latent_dim) projection from latent to value, or None to stop at the latent.
        latent_dim: Numbers of a key that are its value, from the front.
        dtype: ``fp32`` or ``fp64``, of the reference arithmetic.
        chunk_bytes: Memory for a block of rows.

    Raises:
        ValueError: for shapes that do not belong together, or values that are not finite.
    """

    query: Tensor
    key: Tensor
    softmax_scale: float
    up_v: Tensor | None = None
    latent_dim: int = LATENT_DIM
    dtype: str = "fp32"
    chunk_bytes: int = CHUNK_BYTES

    def __post_init__(self) -> None:
        """Check shapes and values once, so that no block has to."""
        _check_shapes(self)
        if self.dtype not in REFERENCE_DTYPES:
            raise ValueError(
                f"reference dtype must be one of {sorted(REFERENCE_DTYPES)}, found {self.dtype!r}"
            )
        if self.chunk_bytes < 1 or not math.isfinite(self.softmax_scale):
            raise ValueError(
                f"chunk_bytes must be at least 1 and softmax_scale finite, found "
                f"{self.chunk_bytes} and {self.softmax_scale}"
            )
        for name in ("query", "key", "up_v"):
            tensor = getattr(self, name)
            if tensor is not None and not torch.isfinite(tensor).all():
                raise ValueError(
                    f"{name} holds NaN or infinite values, which reach rows that do not attend to "
                    "them (0 * NaN); judge the layer that produced it first"
                )

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the reference arithmetic."""
        return REFERENCE_DTYPES[self.dtype]

    @property
    def value_dim(self) -> int:
        """Width of a head's output."""
        return self.latent_dim if self.up_v is None else self.up_v.shape[1]

    def take(self, rows: Tensor) -> AttentionOperands:
        """Return the operands of the rows at ``rows`` (int64), keys unchanged."""
        return replace(self, query=self.query[rows.to(self.query.device)])

    def check_support(self, support: Support) -> None:
        """Raise ValueError unless the support is of these rows and keys."""
        if (support.num_rows, support.num_keys) != (self.query.shape[0], self.key.shape[0]):
            raise ValueError(
                f"the support is of {support.num_rows} rows and {support.num_keys} keys, but there "
                f"are {self.query.shape[0]} query rows and {self.key.shape[0]} keys"
            )

    def blocks(self, support: Support) -> Iterator[Block]:
        """Cut the rows so that keys and the few tensors of (rows, heads, keys) fit.

        Raises:
            ValueError: when the support is not of these rows and keys.
        """
        self.check_support(support)
        _, heads, width = self.query.shape
        return support.blocks(
            row_numbers=6 * heads,
            # Gathered keys, and two gradients for each of them.
            key_numbers=3 * width,
            budget=self.chunk_bytes // self.torch_dtype.itemsize,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionResult:
    """Attention of R rows.

    Attributes:
        output: (R, H, V), or the latent where there is no ``up_v``; 0 for a row without keys.
        latent: (R, H, latent_dim).
        lse: (R, H) natural logarithm of the sum of exponentials; -inf for a row without keys (an
            empty sum; FlashMLA writes +inf there).
    """

    output: Tensor
    latent: Tensor
    lse: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionReference:
    """Forward and backward values of R rows, with their error scales.

    Attributes:
        output: (R, H, V).
        lse: (R, H).
        grad_query: (R, H, D), None without an upstream gradient, like the following.
        grad_key: (N, D) summed over these rows and all heads.
        grad_up_v: (H, V, latent_dim) summed over these rows, None without ``up_v`` too.
    """

    output: Expected
    lse: Tensor
    grad_query: Expected | None = None
    grad_key: Expected | None = None
    grad_up_v: Expected | None = None


def probabilities(
    block: Block, query: Tensor, gathered: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Return attention probabilities of a block, (r, H, n), 0 where masked, and lse, (r, H).

    Args:
        block: The rows and their keys.
        query: (r, H, D) in the reference dtype.
        gathered: ``block.gather`` of the keys.
        scale: Softmax scale.
    """
    mask = block.mask.unsqueeze(1)
    empty = ~mask.any(2, keepdim=True)
    logits = (block.dot(query, gathered) * scale).masked_fill(~mask, -torch.inf)
    # A row of -inf alone would give NaN, in the backward too.
    logits = logits.masked_fill(empty, 0.0)
    p = torch.softmax(logits, dim=2).masked_fill(~mask, 0.0)
    return p, torch.logsumexp(logits, dim=2).masked_fill(empty.squeeze(2), -torch.inf)


def attention(operands: AttentionOperands, support: Support) -> AttentionResult:
    """Attend, differentiably; ``attention_reference`` is the cheaper way to gradients.

    Autograd keeps no block: each is computed again in the backward. Run that backward inside
    ``full_precision`` where the process has reduced precision switched on.

    Raises:
        ValueError: when the support is not of these rows and keys.
    """
    dtype = operands.torch_dtype
    up_v = None if operands.up_v is None else operands.up_v.to(dtype)
    outputs, latents, lses = [], [], []

    def attend(query: Tensor, key: Tensor, block: Block) -> tuple[Tensor, Tensor]:
        gathered = block.gather(key, dtype)
        p, lse = probabilities(block, query.to(dtype), gathered, operands.softmax_scale)
        return block.mix(p, gathered[..., : operands.latent_dim]), lse

    with full_precision():
        for block in operands.blocks(support):
            arguments = (operands.query[block.rows], operands.key, block)
            if torch.is_grad_enabled():
                latent, lse = checkpoint(attend, *arguments, use_reentrant=False)
            else:
                latent, lse = attend(*arguments)
            latents.append(latent)
            lses.append(lse)
            outputs.append(latent if up_v is None else project(latent, up_v))
    heads, device = operands.query.shape[1], operands.query.device
    if not latents:
        outputs = [torch.zeros(0, heads, operands.value_dim, dtype=dtype, device=device)]
        latents = [torch.zeros(0, heads, operands.latent_dim, dtype=dtype, device=device)]
        lses = [torch.zeros(0, heads, dtype=dtype, device=device)]
    return AttentionResult(
        output=torch.cat(outputs), latent=torch.cat(latents), lse=torch.cat(lses)
    )


def project(latent: Tensor, up_v: Tensor) -> Tensor:
    """Return the output (r, H, V) of a latent (r, H, C) through ``up_v`` (H, V, C)."""
    return torch.einsum("rhc,hvc->rhv", latent, up_v)


def _check_shapes(operands: AttentionOperands) -> None:
    query, key, up_v = operands.query, operands.key, operands.up_v
    if query.dim() != 3:
        raise ValueError(f"query must be (rows, heads, dim), found shape {tuple(query.shape)}")
    if key.dim() != 2 or key.shape[1] != query.shape[2]:
        raise ValueError(
            f"key must be (keys, dim={query.shape[2]}), found shape {tuple(key.shape)}; give the "
            "keys in packed order with the single key head squeezed out"
        )
    if not 1 <= operands.latent_dim <= key.shape[1]:
        raise ValueError(
            f"latent_dim must be in [1, {key.shape[1]}] (values are the front of the keys), found "
            f"{operands.latent_dim}"
        )
    if up_v is not None and (
        up_v.dim() != 3 or (up_v.shape[0], up_v.shape[2]) != (query.shape[1], operands.latent_dim)
    ):
        raise ValueError(
            f"up_v must be (heads={query.shape[1]}, value_dim, latent_dim={operands.latent_dim}), "
            f"found shape {tuple(up_v.shape)}"
        )
