"""What single calls of the training kernels should yield, slot by slot.

Written from the kernels' documented formulas, apart from the models in ``harness.kernels``. A slot
counts when it holds a key of its own row's sequence; one that holds anything else, or lies behind
its row's length, adds nothing anywhere (https://github.com/NVIDIA/cudnn-frontend/issues/550).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.reference.attention import AttentionOperands, AttentionReference
from harness.reference.attention_gradients import attention_reference
from harness.reference.expected import Expected
from harness.reference.precision import full_precision
from harness.reference.support import Selected


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotProbabilities:
    """Distributions over a row's slots, 0 in slots that hold no key.

    Attributes:
        target: (R, K) head-summed attention probabilities.
        predict: (R, K) softmax of the indexer's scores.
    """

    target: Tensor
    predict: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexerSlotGradients:
    """Gradients of the indexer's rows and keys."""

    queries: Expected
    weights: Expected
    keys: Expected


def selected_mask(selection: Tensor) -> Tensor:
    """Return which slots of ``selection`` (R, K) hold a key: -1 is an empty one."""
    return selection >= 0


def target_probabilities(
    query: Tensor, key: Tensor, selection: Tensor, scale: float, lse: Tensor | None = None
) -> Expected:
    """Attention probabilities of a row's slots, summed over heads, adding up to 1.

    Args:
        query: (R, H, D).
        key: (N, D).
        selection: (R, K) int64, -1 for an empty slot.
        scale: Softmax scale.
        lse: (R, H) logarithm of each head's own sum, None for that over the slots themselves.
    """
    mask = selected_mask(selection)
    with full_precision():
        gathered = key.float()[selection.clamp(min=0)]
        logits = torch.bmm(query.float(), gathered.transpose(1, 2)) * scale
        if lse is None:
            lse = torch.logsumexp(logits.masked_fill(~mask.unsqueeze(1), -torch.inf), dim=2)
        per_head = torch.exp(logits - lse.float().unsqueeze(2))
        mass = per_head.masked_fill(~mask.unsqueeze(1), 0.0).sum(1)
        value = mass / mass.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return Expected(value=value, scale=value, length=query.shape[1])


def slot_probabilities(
    query: Tensor,
    key: Tensor,
    indexer: tuple[Tensor, Tensor, Tensor],
    selection: Tensor,
    scale: float,
) -> SlotProbabilities:
    """Both distributions of an indexer loss over the selected keys.

    Args:
        query: (R, H, D) of the attention.
        key: (N, D).
        indexer: q (R, Hi, Di), k (N, Di) and weights (R, Hi).
        selection: (R, K) int64, -1 for an empty slot.
        scale: Softmax scale of the attention.
    """
    q, k, weights = (tensor.float() for tensor in indexer)
    mask = selected_mask(selection)
    with full_precision():
        products = torch.bmm(q, k[selection.clamp(min=0)].transpose(1, 2))
        scores = torch.einsum("rhk,rh->rk", products.relu(), weights)
        scores = scores.masked_fill(~mask, -torch.inf).masked_fill(~mask.any(1, keepdim=True), 0.0)
        predict = torch.softmax(scores, dim=1).masked_fill(~mask, 0.0)
    return SlotProbabilities(
        target=target_probabilities(query, key, selection, scale).value, predict=predict
    )


def indexer_slot_gradients(
    indexer: tuple[Tensor, Tensor, Tensor],
    probabilities: SlotProbabilities,
    counted: Tensor,
    row_weight: float,
) -> IndexerSlotGradients:
    """Gradients of ``row_weight * sum_r KL(target || predict)`` through the slots that count.

    Args:
        indexer: q (R, Hi, Di), k (N, Di) and weights (R, Hi).
        probabilities: As the kernel is given them.
        counted: (R, K) int64 keys, -1 for a slot that adds nothing.
        row_weight: Of each row in the loss.
    """
    q, k, weights = (tensor.double() for tensor in indexer)
    mask = selected_mask(counted)
    target, predict = probabilities.target.double(), probabilities.predict.double()
    # What is left of the target's own sum keeps rows whose slots were tampered with exact.
    slope = predict * target.sum(1, keepdim=True) - target
    signal = row_weight * slope.masked_fill(~mask, 0.0)
    either = row_weight * torch.hypot(predict, target).masked_fill(~mask, 0.0)
    gathered = k[counted.clamp(min=0)]
    products = torch.bmm(q, gathered.transpose(1, 2))
    passed = products.relu()
    slopes = weights.unsqueeze(2) * (products > 0)
    through, spread = signal.unsqueeze(1) * slopes, either.unsqueeze(1) * slopes
    parts = torch.bmm(through.transpose(1, 2), q)
    squares = torch.bmm(spread.square().transpose(1, 2), q.square())
    return IndexerSlotGradients(
        queries=_expected(
            torch.bmm(through, gathered),
            torch.bmm(spread.square(), gathered.square()),
            counted.shape[1],
        ),
        weights=_expected(
            torch.einsum("rk,rhk->rh", signal, passed),
            torch.einsum("rk,rhk->rh", either.square(), passed.square()),
            counted.shape[1],
        ),
        keys=_expected(
            _summed(k, counted, mask, parts), _summed(k, counted, mask, squares), counted.numel()
        ),
    )


def _expected(value: Tensor, squares: Tensor, length: int) -> Expected:
    # Elements of a row share its scale: a single product may vanish where its neighbours do not.
    scale = squares.mean(-1, keepdim=True).sqrt() if value.dim() > 1 else squares.sqrt()
    return Expected(value=value, scale=scale.expand_as(value), length=max(1, length))


def _summed(keys: Tensor, counted: Tensor, mask: Tensor, parts: Tensor) -> Tensor:
    total = torch.zeros_like(keys)
    return total.index_add_(0, counted[mask], parts[mask])


def attention_slot_values(
    query: Tensor, key: Tensor, selection: Tensor, grad_output: Tensor, scale: float
) -> AttentionReference:
    """Output, statistics and gradients of sparse attention over the slots that count.

    Args:
        query: (R, H, D) with a latent of 512 in front of each key.
        key: (N, D).
        selection: (R, K) int64, -1 for an empty slot.
        grad_output: (R, H, 512).
        scale: Softmax scale.
    """
    operands = AttentionOperands(query=query, key=key, softmax_scale=scale)
    support = Selected.of(selection, num_keys=key.shape[0])
    return attention_reference(operands, support, grad_output)
