"""The indexer's loss: ``KL(target || predicted)`` per row, and its gradients in closed form.

Over the keys n of a row: the *target* is the sum of all attention heads' probabilities, divided by
its own sum, and takes no gradient; the *predicted* distribution is the softmax of the indexer's
scores ``I_n = sum_h w_h relu(q_h . k_n)``. Both run over the same keys: the selected ones, or all
visible ones. Hence ``dKL / dI_n = predicted_n - target_n``.

Source: section 2.1 of https://github.com/deepseek-ai/DeepSeek-V3.2-Exp/blob/main/DeepSeek_V3_2.pdf
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from harness.reference.attention import AttentionOperands, probabilities
from harness.reference.expected import Expected
from harness.reference.operands import MARGIN_UNIT, Operands
from harness.reference.precision import full_precision
from harness.reference.scores import key_norms
from harness.reference.support import Block, Support


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexerReference:
    """Divergence of R rows and the gradients of a weighted sum of them.

    Attributes:
        kl: (R,) divergence of each row, whatever its weight; 0 for a row without keys.
        grad_q: (R, H, D) of the indexer's queries.
        grad_k: (N, D) of the indexer's keys, summed over these rows.
        grad_weights: (R, H).
    """

    kl: Expected
    grad_q: Expected
    grad_k: Expected
    grad_weights: Expected


def indexer_kl(
    indexer: Operands, attention: AttentionOperands, support: Support, *, relu: bool = True
) -> Tensor:
    """Return the divergence of each row, (R,), differentiable in q, k and w of the indexer.

    Args:
        indexer: The rows' indexer queries and weights, and all indexer keys.
        attention: The same rows of the attention, all of its heads, and its keys.
        support: The keys that the loss runs over.
        relu: Whether products pass a relu before the head sum.

    Raises:
        ValueError: when the operands are not of the same rows and keys.
    """
    _check(indexer, attention)
    results = []

    def divergence(q: Tensor, k: Tensor, w: Tensor, block: Block) -> Tensor:
        dtype = indexer.torch_dtype
        with torch.no_grad():
            target = _target(attention, block).to(dtype)
        products = block.dot(q.to(dtype), block.gather(k, dtype))
        scores = _scores(products, w.to(dtype), relu)
        return _divergence(block, target, _log_predicted(block, scores))

    with full_precision():
        for block in _blocks(indexer, attention, support):
            arguments = (indexer.q[block.rows], indexer.k, indexer.w[block.rows], block)
            if torch.is_grad_enabled():
                results.append(checkpoint(divergence, *arguments, use_reentrant=False))
            else:
                results.append(divergence(*arguments))
    if not results:
        return torch.zeros(0, dtype=indexer.torch_dtype, device=indexer.q.device)
    return torch.cat(results)


@torch.no_grad()
def indexer_reference(
    indexer: Operands,
    attention: AttentionOperands,
    support: Support,
    row_weights: Tensor,
    *,
    relu: bool = True,
) -> IndexerReference:
    """Return each row's divergence, and the gradients of ``sum(row_weights * kl)``.

    Args:
        indexer: As for ``indexer_kl``.
        attention: As for ``indexer_kl``.
        support: The keys that the loss runs over.
        row_weights: (R,) weight of each row in the loss; 0 for a row that does not count.
        relu: Whether products pass a relu before the head sum.

    Raises:
        ValueError: when the operands or weights are not of the same rows and keys.
    """
    _check(indexer, attention)
    if row_weights.shape != indexer.q.shape[:1]:
        raise ValueError(
            f"row_weights must be ({indexer.q.shape[0]},), found {tuple(row_weights.shape)}"
        )
    sums = _Sums(indexer, relu)
    with full_precision():
        for block in _blocks(indexer, attention, support):
            weights = row_weights[block.rows].to(indexer.q.device, indexer.torch_dtype)
            sums.put(block, _target(attention, block).to(indexer.torch_dtype), weights)
    return sums.result(support.longest)


def _target(attention: AttentionOperands, block: Block) -> Tensor:
    """Head-summed attention probabilities, (r, n), adding up to 1 (0 in rows without keys)."""
    dtype = attention.torch_dtype
    query = attention.query[block.rows].detach().to(dtype)
    gathered = block.gather(attention.key.detach(), dtype)
    p, _ = probabilities(block, query, gathered, attention.softmax_scale)
    mass = p.sum(1)
    return mass / mass.sum(1, keepdim=True).clamp_min(torch.finfo(dtype).tiny)


def _scores(products: Tensor, weights: Tensor, relu: bool) -> Tensor:
    """Sum (r, H, n) products over heads with (r, H) weights."""
    return torch.einsum("rhn,rh->rn", products.relu() if relu else products, weights)


def _log_predicted(block: Block, scores: Tensor) -> Tensor:
    """Log-softmax over the block's keys, 0 where masked."""
    empty = ~block.mask.any(1, keepdim=True)
    logits = scores.masked_fill(~block.mask, -torch.inf).masked_fill(empty, 0.0)
    return torch.log_softmax(logits, dim=1).masked_fill(~block.mask, 0.0)


def _divergence(block: Block, target: Tensor, log_predicted: Tensor) -> Tensor:
    terms = torch.xlogy(target, target) - target * log_predicted
    return terms.masked_fill(~block.mask, 0.0).sum(1)


def _blocks(indexer: Operands, attention: AttentionOperands, support: Support) -> Iterator[Block]:
    """Cut the rows so that both kinds of keys and the tensors of (rows, heads, keys) fit."""
    attention.check_support(support)
    heads, width = attention.query.shape[1:]
    indexer_heads, indexer_width = indexer.q.shape[1:]
    return support.blocks(
        row_numbers=3 * heads + 6 * indexer_heads,
        key_numbers=width + 2 * indexer_width,
        budget=attention.chunk_bytes // max(attention.torch_dtype.itemsize, 4),
    )


def _check(indexer: Operands, attention: AttentionOperands) -> None:
    found = (indexer.q.shape[0], indexer.k.shape[0])
    expected = (attention.query.shape[0], attention.key.shape[0])
    if found != expected:
        raise ValueError(
            f"the indexer has {found[0]} rows and {found[1]} keys, but attention has "
            f"{expected[0]} rows and {expected[1]} keys; give both of the same rank and pack"
        )


class _Sums:
    """Results of all rows, filled block by block; squares of the error scales beside them."""

    def __init__(self, indexer: Operands, relu: bool) -> None:
        self.indexer = indexer
        self.relu = relu
        (rows, heads, width), num_keys = indexer.q.shape, indexer.k.shape[0]
        self.kl, self.kl_scale = self._zeros(rows), self._zeros(rows)
        self.q, self.weights = self._zeros(rows, heads, width), self._zeros(rows, heads)
        self.k = self._zeros(num_keys, width)
        self.q_squares, self.q_slack = self._zeros(rows, heads, 1), self._zeros(rows, heads, 1)
        self.weights_squares, self.weights_slack = (self._zeros(rows, heads) for _ in range(2))
        self.k_squares, self.k_slack = self._zeros(num_keys, 1), self._zeros(num_keys, 1)
        self.norms = key_norms(indexer.k, dtype=indexer.torch_dtype).unsqueeze(1)

    def _zeros(self, *shape: int) -> Tensor:
        indexer = self.indexer
        return torch.zeros(shape, dtype=indexer.torch_dtype, device=indexer.q.device)

    def put(self, block: Block, target: Tensor, row_weights: Tensor) -> None:
        dtype = self.indexer.torch_dtype
        q, w = (t[block.rows].to(dtype) for t in (self.indexer.q, self.indexer.w))
        gathered = block.gather(self.indexer.k, dtype)
        products = block.dot(q, gathered)
        log_predicted = _log_predicted(block, _scores(products, w, self.relu))
        self.kl[block.rows] = _divergence(block, target, log_predicted)
        logs = target.log().masked_fill(target == 0, 0.0).abs() + log_predicted.abs()
        self.kl_scale[block.rows] = (target * logs).sum(1)
        predicted = log_predicted.exp().masked_fill(~block.mask, 0.0)
        grad = row_weights.unsqueeze(1) * (predicted - target)
        either = row_weights.unsqueeze(1) * torch.hypot(predicted, target)
        self._put_gradients(block, (q, w, gathered, products), grad, either)

    def _put_gradients(
        self,
        block: Block,
        operands: tuple[Tensor, Tensor, Tensor, Tensor],
        grad: Tensor,
        either: Tensor,
    ) -> None:
        """Add gradients from (r, n) ones of the scores, and scales from ``either`` of its terms."""
        q, w, gathered, products = operands
        through = products > 0 if self.relu else torch.ones_like(products, dtype=torch.bool)
        passed = products * through
        lengths = block.gather(self.norms, self.norms.dtype)
        norms = block.dot(torch.linalg.vector_norm(q, dim=2, keepdim=True), lengths)
        # Products may cancel, so their norm counts beside what they come to.
        squares = passed.square() + norms.square() * through / q.shape[2]
        self.weights[block.rows] = torch.einsum("rn,rhn->rh", grad, passed)
        self.weights_squares[block.rows] = torch.einsum("rn,rhn->rh", either.square(), squares)
        grads = grad.unsqueeze(1) * w.unsqueeze(2) * through
        self.q[block.rows] = block.mix(grads, gathered)
        block.add_to(self.k, block.parts(grads, q))
        squares = (either.unsqueeze(1) * w.unsqueeze(2) * through).square()
        self.q_squares[block.rows] = block.mix(squares, lengths.square()) / q.shape[2]
        parts = block.parts(squares, q.square().mean(2, keepdim=True))
        block.add_to(self.k_squares, parts)
        near = (products != 0) & (products.abs() <= MARGIN_UNIT * norms)
        if self.relu and near.any():
            self._put_slack(block, operands, grad.abs().unsqueeze(1) * near, norms)

    def _put_slack(
        self,
        block: Block,
        operands: tuple[Tensor, Tensor, Tensor, Tensor],
        near: Tensor,
        norms: Tensor,
    ) -> None:
        """A product within its rounding error of 0 may pass the relu or not, and both are right.

        An exact 0 is 0 in every order of summation: it does not pass.

        Args:
            block: The rows.
            operands: q, w, gathered keys, products.
            near: (r, h, n) magnitude of the score's gradient there, 0 elsewhere.
            norms: (r, h, n) greatest size of the products.
        """
        q, w, gathered, _ = operands
        self.weights_slack[block.rows] = (near * MARGIN_UNIT * norms).sum(2)
        terms = near * w.abs().unsqueeze(2)
        self.q_slack[block.rows] = block.mix(terms, gathered.abs().amax(-1, keepdim=True))
        block.add_to(self.k_slack, block.parts(terms, q.abs().amax(2, keepdim=True)))

    def result(self, longest: int) -> IndexerReference:
        rows, heads, _ = self.indexer.q.shape
        return IndexerReference(
            kl=Expected(value=self.kl, scale=self.kl_scale, length=longest),
            grad_q=Expected(
                value=self.q, scale=self.q_squares.sqrt(), slack=self.q_slack, length=longest
            ),
            grad_k=Expected(
                value=self.k,
                scale=self.k_squares.sqrt(),
                slack=self.k_slack,
                length=max(1, rows * heads),
            ),
            grad_weights=Expected(
                value=self.weights,
                scale=self.weights_squares.sqrt(),
                slack=self.weights_slack,
                length=longest,
            ),
        )
