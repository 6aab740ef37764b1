"""Attention's output and gradients in closed form, block by block, with their error scales.

With ``g`` the upstream gradient at the latent (``up_v^T`` of the one at the output), per row and
head:

    dp_n = g . v_n,   d = g . o,   ds_n = scale * p_n (dp_n - d)
    dq = sum_n ds_n k_n,   dk_n += ds_n q + (p_n g, 0),   d_up_v += upstream (outer) o

Nothing but sums over rows outlives a block, so the memory does not grow with the number of keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.reference.attention import (
    AttentionOperands,
    AttentionReference,
    probabilities,
    project,
)
from harness.reference.expected import Expected
from harness.reference.precision import full_precision
from harness.reference.support import Block, Support

_PIECE = 8192
"""Keys upcast at a time."""


@torch.no_grad()
def attention_reference(
    operands: AttentionOperands, support: Support, grad_output: Tensor | None = None
) -> AttentionReference:
    """Return attention's values, and its gradients where an upstream gradient is given.

    Args:
        operands: Rows and keys.
        support: Which keys each row attends to.
        grad_output: (R, H, V) upstream gradient of the output, of every row.

    Raises:
        ValueError: when the support or the gradient is not of these rows and keys.
    """
    rows, heads, _ = operands.query.shape
    shape = (rows, heads, operands.value_dim)
    if grad_output is not None and grad_output.shape != shape:
        raise ValueError(f"grad_output must be {shape}, found {tuple(grad_output.shape)}")
    sums = _Sums(operands, with_gradients=grad_output is not None)
    with full_precision():
        for block in operands.blocks(support):
            forward = _forward(operands, block)
            sums.put_forward(block, forward)
            if grad_output is not None:
                upstream = grad_output[block.rows].to(operands.torch_dtype)
                sums.put_backward(block, forward, upstream)
    return sums.result(support.longest)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Forward:
    """A block's forward values; q (r, H, D), gathered keys, p (r, H, n), latent (r, H, C)."""

    q: Tensor
    gathered: Tensor
    p: Tensor
    lse: Tensor
    latent: Tensor


def _forward(operands: AttentionOperands, block: Block) -> _Forward:
    dtype = operands.torch_dtype
    q = operands.query[block.rows].to(dtype)
    gathered = block.gather(operands.key, dtype)
    p, lse = probabilities(block, q, gathered, operands.softmax_scale)
    latent = block.mix(p, gathered[..., : operands.latent_dim])
    return _Forward(q=q, gathered=gathered, p=p, lse=lse, latent=latent)


def _mean_squares(keys: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mean square of each key's numbers, (N, 1), upcasting some keys at a time."""
    pieces = [piece.to(dtype).square().mean(1, keepdim=True) for piece in keys.split(_PIECE)]
    return torch.cat(pieces) if pieces else keys.new_zeros(0, 1, dtype=dtype)


class _Sums:
    """Results of all rows, filled block by block; squares of the error scales beside them."""

    def __init__(self, operands: AttentionOperands, *, with_gradients: bool) -> None:
        self.operands = operands
        rows, heads, width = operands.query.shape
        self.up_v = None if operands.up_v is None else operands.up_v.to(operands.torch_dtype)
        self.output = self._zeros(rows, heads, operands.value_dim)
        self.output_scale = self._zeros(rows, heads, 1)
        self.lse = self._zeros(rows, heads)
        self.value2 = _mean_squares(operands.key[:, : operands.latent_dim], operands.torch_dtype)
        self.with_gradients = with_gradients
        if not with_gradients:
            return
        num_keys = operands.key.shape[0]
        self.key2 = _mean_squares(operands.key, operands.torch_dtype)
        self.query = self._zeros(rows, heads, width)
        self.query_squares = self._zeros(rows, heads, 1)
        self.key = self._zeros(num_keys, width)
        self.key_squares = self._zeros(num_keys, 1)
        if self.up_v is not None:
            self.grad_up_v = torch.zeros_like(self.up_v)
            self.up_v_squares = self._zeros(heads, self.up_v.shape[1], 1)

    def _zeros(self, *shape: int) -> Tensor:
        operands = self.operands
        return torch.zeros(shape, dtype=operands.torch_dtype, device=operands.query.device)

    def put_forward(self, block: Block, forward: _Forward) -> None:
        """Each p_n is rounded, then the latent, then the output."""
        latent = forward.latent
        squares = self._mixed_value2(block, forward)
        if self.up_v is None:
            self.output[block.rows] = latent
            self.output_scale[block.rows] = squares.sqrt()
        else:
            self.output[block.rows] = project(latent, self.up_v)
            projection = self.up_v.square().sum(2).mean(1).view(1, -1, 1)
            squares = (squares + latent.square().mean(2, keepdim=True)) * projection
            self.output_scale[block.rows] = squares.sqrt()
        self.lse[block.rows] = forward.lse

    def put_backward(self, block: Block, forward: _Forward, upstream: Tensor) -> None:
        operands, p, latent = self.operands, forward.p, forward.latent
        grad = upstream
        if self.up_v is not None:
            self._put_up_v(block, forward, upstream)
            grad = torch.einsum("rhv,hvc->rhc", upstream, self.up_v)
        dp = block.dot(grad, forward.gathered[..., : operands.latent_dim])
        products = dp - (grad * latent).sum(2, keepdim=True)
        ds = operands.softmax_scale * p * products
        self.query[block.rows] = block.mix(ds, forward.gathered)
        parts = block.parts(ds, forward.q)
        parts[..., : operands.latent_dim] += block.parts(p, grad)
        block.add_to(self.key, parts)
        self._put_scales(block, forward, grad, dp, products)

    def _put_scales(
        self, block: Block, forward: _Forward, grad: Tensor, dp: Tensor, products: Tensor
    ) -> None:
        """The latent's gradient, P, the latent and dS are rounded; see ``Expected.scale``.

        dp_n and d are dot products that may cancel, so their norms count. d errs through the latent
        that it is taken from, by one amount that all keys of a row share.
        """
        scale2 = self.operands.softmax_scale**2
        p2 = forward.p.square()
        grad2 = grad.square().sum(2, keepdim=True)
        shared = grad2 * forward.latent.square().mean(2, keepdim=True)
        value2 = block.gather(self.value2, self.value2.dtype).transpose(-1, -2)
        shared = scale2 * (shared + (p2 * dp.square()).sum(2, keepdim=True))
        own = scale2 * (grad2 * value2 + products.square())
        ds2 = p2 * (own + shared)
        mean_key2 = block.mix(forward.p, forward.gathered).square().mean(2, keepdim=True)
        key2 = block.gather(self.key2, self.key2.dtype)
        self.query_squares[block.rows] = block.mix(ds2, key2) + shared * mean_key2
        parts = block.parts(ds2, forward.q.square().mean(2, keepdim=True))
        parts += block.parts(p2, grad.square().mean(2, keepdim=True))
        block.add_to(self.key_squares, parts)

    def _mixed_value2(self, block: Block, forward: _Forward) -> Tensor:
        """Return ``sum_n p_n^2`` times the mean square of value n, (r, H, 1)."""
        return block.mix(forward.p.square(), block.gather(self.value2, self.value2.dtype))

    def _put_up_v(self, block: Block, forward: _Forward, upstream: Tensor) -> None:
        self.grad_up_v += torch.einsum("rhv,rhc->hvc", upstream, forward.latent)
        squares = forward.latent.square().mean(2, keepdim=True)
        squares = squares + self._mixed_value2(block, forward)
        self.up_v_squares += torch.einsum("rhv,rho->hvo", upstream.square(), squares)

    def result(self, longest: int) -> AttentionReference:
        rows, heads, _ = self.operands.query.shape
        output = Expected(value=self.output, scale=self.output_scale, length=longest)
        if not self.with_gradients:
            return AttentionReference(output=output, lse=self.lse)
        grad_up_v = None
        if self.up_v is not None:
            grad_up_v = Expected(
                value=self.grad_up_v, scale=self.up_v_squares.sqrt(), length=max(1, rows)
            )
        return AttentionReference(
            output=output,
            lse=self.lse,
            grad_query=Expected(value=self.query, scale=self.query_squares.sqrt(), length=longest),
            grad_key=Expected(
                value=self.key, scale=self.key_squares.sqrt(), length=max(1, rows * heads)
            ),
            grad_up_v=grad_up_v,
        )
