"""Gradients of the indexer's own parameters, from those of its queries, keys and head weights.

The indexer projects a token's hidden state x and its low-rank query c:

    q = rope(Wq c),   k = rope(layernorm(Wk x)),   w = (Ww x) / sqrt(heads * dim)

Rotation turns the first ``rotary_dim`` numbers of a head by the token's position in its own
sequence. Hidden states and low-rank queries take no gradient from the indexer: it learns from its
loss alone (section 2.1 of
https://github.com/deepseek-ai/DeepSeek-V3.2-Exp/blob/main/DeepSeek_V3_2.pdf).

Written in closed form, so that every gradient comes with the scale of its rounding error.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.reference.expected import Expected
from harness.reference.precision import full_precision


@dataclass(frozen=True, kw_only=True, slots=True)
class Rotary:
    """How positions turn a head.

    Attributes:
        dim: Numbers that are turned, from the front.
        base: Rotary base.
        interleaved: Pairs are neighbours (2i, 2i + 1) and land in two halves; else a pair is
            (i, i + dim / 2).
    """

    dim: int
    base: float
    interleaved: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexerProjection:
    """Parameters of an indexer and what went into it, of R local rows.

    Attributes:
        hidden: (R, h) hidden states x.
        low_rank: (R, r) low-rank queries c.
        positions: (R,) int64 position of each row in its own sequence.
        key_weight: (Di, h) Wk.
        norm_weight: (Di,) of the layer norm.
        norm_epsilon: Of the layer norm.
        num_heads: Hi.
        rotary: Rotation.
    """

    hidden: Tensor
    low_rank: Tensor
    positions: Tensor
    key_weight: Tensor
    norm_weight: Tensor
    norm_epsilon: float
    num_heads: int
    rotary: Rotary


@torch.no_grad()
def parameter_gradients(
    projection: IndexerProjection, *, grad_q: Expected, grad_k: Expected, grad_weights: Expected
) -> dict[str, Expected]:
    """Return one rank's part of the parameters' gradients.

    Args:
        projection: Of the rank's rows; its keys are those of the same rows.
        grad_q: (R, Hi, Di).
        grad_k: (R, Di) of the rank's own keys, summed over the ranks that scored them.
        grad_weights: (R, Hi) of the head weights with their scale in them.

    Returns:
        ``linear_wq_b.weight``, ``linear_wk.weight``, ``k_norm.weight``, ``k_norm.bias`` and
        ``linear_weights_proj.weight``, named as in the module.
    """
    dtype = grad_q.value.dtype
    x, c = projection.hidden.to(dtype), projection.low_rank.to(dtype)
    dim = grad_q.value.shape[2]
    with full_precision():
        wq = _outer(_flat(_unrotated(grad_q, projection)), c)
        scale = (projection.num_heads * dim) ** -0.5
        ww = _outer(_times(grad_weights, torch.tensor(scale, dtype=dtype)), x)
        turned = _unrotated(grad_k, projection)
        raw = x @ projection.key_weight.to(dtype).T
        centred = raw - raw.mean(1, keepdim=True)
        sigma = (raw.var(1, unbiased=False, keepdim=True) + projection.norm_epsilon).sqrt()
        normal = centred / sigma
        before = _through_norm(turned, normal, sigma, projection.norm_weight.to(dtype))
        return {
            "linear_wq_b.weight": wq,
            "linear_wk.weight": _outer(before, x),
            "k_norm.weight": _summed(_times(turned, normal)),
            "k_norm.bias": _summed(turned),
            "linear_weights_proj.weight": ww,
        }


def _unrotated(grad: Expected, projection: IndexerProjection) -> Expected:
    """Turn a gradient back to before the rotation; squares of error scales turn with it."""
    rotary, half = projection.rotary, projection.rotary.dim // 2
    dtype = grad.value.dtype
    exponents = torch.arange(half, dtype=torch.float64) / half
    angles = projection.positions.double().unsqueeze(1) * rotary.base**-exponents
    shape = (angles.shape[0], *(1,) * (grad.value.dim() - 2), half)
    cos, sin = (part.to(dtype).view(shape) for part in (angles.cos(), angles.sin()))

    def turn(tensor: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
        full = tensor.expand(grad.value.shape)
        one, two, rest = full.split((half, half, full.shape[-1] - 2 * half), dim=-1)
        pair = (one * cos + two * sin, two * cos + sign * one * sin)
        if rotary.interleaved:
            return torch.cat((torch.stack(pair, dim=-1).flatten(-2), rest), dim=-1)
        return torch.cat((*pair, rest), dim=-1)

    return Expected(
        value=turn(grad.value, cos, sin, -1),
        scale=turn(grad.scale.square(), cos.square(), sin.square(), 1).sqrt(),
        slack=None if grad.slack is None else turn(grad.slack, cos.abs(), sin.abs(), 1),
        length=grad.length,
        partials=grad.partials,
    )


def _through_norm(grad: Expected, normal: Tensor, sigma: Tensor, weight: Tensor) -> Expected:
    """Return the gradient before a layer norm whose output before its weight is ``normal``."""
    given = _times(grad, weight)
    value, scale = given.value, given.scale.expand(given.value.shape)
    mean = value.mean(1, keepdim=True)
    along = (value * normal).mean(1, keepdim=True)
    width = value.shape[1]
    squares = (scale.square() + value.square() / width).mean(1, keepdim=True) / width
    with_normal = (scale * normal).square().mean(1, keepdim=True) / width
    spread = scale.square() + squares + normal.square() * with_normal
    slack = given.slack
    if slack is not None:
        full = slack.expand(value.shape)
        along_slack = (full * normal.abs()).mean(1, keepdim=True)
        slack = (full + full.mean(1, keepdim=True) + normal.abs() * along_slack) / sigma
    return Expected(
        value=(value - mean - normal * along) / sigma,
        scale=spread.sqrt() / sigma,
        slack=slack,
        length=grad.length + 2 * width,
        partials=grad.partials,
    )


def _times(grad: Expected, factor: Tensor) -> Expected:
    return Expected(
        value=grad.value * factor,
        scale=grad.scale * factor.abs(),
        slack=None if grad.slack is None else grad.slack * factor.abs(),
        length=grad.length,
        partials=grad.partials,
    )


def _flat(grad: Expected) -> Expected:
    """Flatten heads and head dimension."""

    def flat(tensor: Tensor) -> Tensor:
        return tensor.expand(grad.value.shape).flatten(1)

    return Expected(
        value=flat(grad.value),
        scale=flat(grad.scale),
        slack=None if grad.slack is None else flat(grad.slack),
        length=grad.length,
        partials=grad.partials,
    )


def _outer(grad: Expected, inputs: Tensor) -> Expected:
    """Return the gradient (out, in) of a linear layer's weight: a sum over rows.

    A row's gradient is rounded as a whole before it enters the sum, so that its size counts beside
    the scale of its own terms.
    """
    shape = grad.value.shape
    squares = grad.scale.expand(shape).square() + grad.value.square()
    slack = grad.slack
    return Expected(
        value=grad.value.T @ inputs,
        scale=(squares.T @ inputs.square()).sqrt(),
        slack=None if slack is None else slack.expand(shape).T @ inputs.abs(),
        length=grad.length + shape[0],
        partials=grad.partials,
    )


def _summed(grad: Expected) -> Expected:
    shape = grad.value.shape
    squares = grad.scale.expand(shape).square() + grad.value.square()
    return Expected(
        value=grad.value.sum(0),
        scale=squares.sum(0).sqrt(),
        slack=None if grad.slack is None else grad.slack.expand(shape).sum(0),
        length=grad.length + shape[0],
        partials=grad.partials,
    )
