"""Arithmetic of sparse attention backward: statistics first, then one group of rows over its keys.

With L = logaddexp(lse, sink), P = exp(scale * q . k - L) and delta = sum out * dout:

    dS = P * (dout . v - delta) * scale,  dq = sum dS * k,  dk = dS * q,  dv = P * dout,
    d_sink = -sum exp(sink - L) * delta.

P and dS are rounded to the input dtype before their products; v is the first 512 columns of k.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

VALUE_DIM = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Statistics:
    """Per (token, head), fp32.

    Attributes:
        log_mass: (T, H) L.
        delta: (T, H).
        d_sink: (H,).
    """

    log_mass: torch.Tensor
    delta: torch.Tensor
    d_sink: torch.Tensor


def attention_statistics(
    out: torch.Tensor, dout: torch.Tensor, lse: torch.Tensor, sink: torch.Tensor, *, guarded: bool
) -> Statistics:
    """Make the statistics of a call.

    Args:
        out: (T, H, 512).
        dout: (T, H, 512).
        lse: (T, H) fp32, without the sink.
        sink: (H,) fp32.
        guarded: Infinite statistics have their limits: no mass where lse and sink are both -inf,
            all of it on a sink of +inf. Without, such rows give NaN.
    """
    log_mass = torch.logaddexp(lse, sink.expand_as(lse))
    delta = _row_products(out, dout)
    share = (sink - log_mass).exp()
    empty = torch.isneginf(lse) & torch.isneginf(sink)
    full = torch.isposinf(sink).expand_as(lse)
    if guarded:
        share = share.masked_fill(empty, 0.0).masked_fill(full, 1.0)
    else:
        log_mass = log_mass.masked_fill(empty | full, float("nan"))
        share = share.masked_fill(empty | full, float("nan"))
    return Statistics(log_mass=log_mass, delta=delta, d_sink=-(share * delta).sum(dim=0))


def _row_products(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Sum over the last axis of left * right in fp32, a few rows at a time."""
    result = torch.empty(left.shape[:2])
    for top in range(0, left.shape[0], 64):
        part = slice(top, top + 64)
        result[part] = torch.einsum("thd,thd->th", left[part].float(), right[part].float())
    return result


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupGradients:
    """Gradients of groups of rows, fp32.

    Attributes:
        queries: (G, R, D).
        keys: (G, K, D) per slot.
    """

    queries: torch.Tensor
    keys: torch.Tensor


def group_gradients(
    q: torch.Tensor,
    dout: torch.Tensor,
    keys: torch.Tensor,
    live: torch.Tensor,
    log_mass: torch.Tensor,
    delta: torch.Tensor,
    *,
    scale: float,
    dtype: torch.dtype,
    scales_first: bool,
) -> GroupGradients:
    """Gradients of groups of rows that share their keys.

    Args:
        q: fp32 (G, R, D).
        dout: fp32 (G, R, 512).
        keys: fp32 (G, K, D).
        live: bool (G, K), slots whose P is not masked.
        log_mass: fp32 (G, R).
        delta: fp32 (G, R).
        scale: Softmax scale.
        dtype: What P and dS are rounded to.
        scales_first: Scale dS in fp32, then round once; else round, scale, round.
    """
    values = keys[..., :VALUE_DIM]
    hidden = (~live).unsqueeze(1)
    # Rows without any mass have L = -inf; every other row has finite exponents or none.
    void = torch.isneginf(log_mass).unsqueeze(2)
    weights = torch.bmm(q, keys.transpose(1, 2)).mul_(scale).sub_(log_mass.unsqueeze(2)).exp_()
    weights.masked_fill_(hidden, 0.0).masked_fill_(void, 0.0)
    slopes = torch.bmm(dout, values.transpose(1, 2)).sub_(delta.unsqueeze(2)).mul_(weights)
    slopes.masked_fill_(hidden, 0.0).masked_fill_(void, 0.0)
    if not scales_first:
        slopes = slopes.to(dtype).float()
    slopes = slopes.mul_(scale).to(dtype).float()
    by_key = torch.bmm(slopes.transpose(1, 2), q)
    by_key[..., :VALUE_DIM] += torch.bmm(weights.to(dtype).float().transpose(1, 2), dout)
    return GroupGradients(queries=torch.bmm(slopes, keys), keys=by_key)
