"""References of single kernel calls against autograd in fp64, and slots that count nothing."""

from __future__ import annotations

import pytest
import torch

from harness.reference.call_values import (
    attention_slot_values,
    indexer_slot_gradients,
    slot_probabilities,
    target_probabilities,
)

SCALE = 0.05
ROWS, KEYS, SLOTS, HEADS, DEPTH = 4, 30, 20, 6, 576


def inputs(seed: int = 0):
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * scale).bfloat16()

    query, key = drawn(ROWS, HEADS, DEPTH), drawn(KEYS, DEPTH)
    indexer = (drawn(ROWS, 8, 16), drawn(KEYS, 16), drawn(ROWS, 8, scale=0.2))
    order = [torch.randperm(KEYS, generator=generator)[:SLOTS] for _ in range(ROWS)]
    selection = torch.stack(order)
    selection[:, 12:] = -1
    selection[2] = -1
    return query, key, indexer, selection


def test_probabilities_are_softmaxes_over_the_slots_with_a_key():
    query, key, indexer, selection = inputs()
    found = slot_probabilities(query, key, indexer, selection, SCALE)
    for row, ids in enumerate(selection):
        chosen = ids[ids >= 0]
        logits = query[row].double() @ key[chosen].double().T * SCALE
        due = torch.softmax(logits, 1).mean(0)
        scores = indexer[2][row].double() @ (
            (indexer[0][row].double() @ indexer[1][chosen].double().T).relu()
        )
        torch.testing.assert_close(found.target[row, ids >= 0].double(), due, rtol=1e-5, atol=1e-7)
        predict = found.predict[row, ids >= 0].double()
        torch.testing.assert_close(predict, torch.softmax(scores, 0), rtol=1e-5, atol=1e-7)
    empty = selection < 0
    assert (found.target[empty] == 0).all() and (found.predict[empty] == 0).all()


def test_a_given_statistic_weighs_the_heads():
    query, key, _indexer, selection = inputs()
    lse = torch.linspace(0.0, 3.0, HEADS).expand(ROWS, HEADS)
    found = target_probabilities(query, key, selection, SCALE, lse).value
    chosen = selection[0][selection[0] >= 0]
    due = torch.exp(query[0].double() @ key[chosen].double().T * SCALE - lse[0].unsqueeze(1)).sum(0)
    torch.testing.assert_close(found[0, :12].double(), due / due.sum(), rtol=1e-5, atol=1e-7)


def test_gradients_equal_autograd_of_the_divergence():
    query, key, indexer, selection = inputs()
    given = slot_probabilities(query, key, indexer, selection, SCALE)
    found = indexer_slot_gradients(indexer, given, selection, 0.25)
    leaves = [tensor.double().requires_grad_() for tensor in indexer]
    q, k, weights = leaves
    loss = torch.zeros((), dtype=torch.float64)
    for row, ids in enumerate(selection):
        chosen = ids[ids >= 0]
        if not len(chosen):
            continue
        target = given.target[row, ids >= 0].double()
        logs = torch.log_softmax(weights[row] @ (q[row] @ k[chosen].T).relu(), 0)
        loss = loss + 0.25 * (target * (target.log() - logs)).sum()
    loss.backward()
    for part, leaf in zip((found.queries, found.keys, found.weights), leaves, strict=True):
        torch.testing.assert_close(part.value, leaf.grad, rtol=1e-4, atol=1e-7)
        assert part.scale.shape == part.value.shape


def test_a_slot_that_counts_nothing_leaves_the_others_as_they_are():
    query, key, indexer, selection = inputs()
    given = slot_probabilities(query, key, indexer, selection, SCALE)
    counted = selection.clone()
    counted[0, 3] = -1
    whole = indexer_slot_gradients(indexer, given, selection, 1.0)
    part = indexer_slot_gradients(indexer, given, counted, 1.0)
    lost = int(selection[0, 3])
    difference = (whole.keys.value - part.keys.value).abs().amax(1)
    assert set(difference.nonzero().flatten().tolist()) == {lost}
    assert torch.equal(whole.queries.value[1:], part.queries.value[1:])
    assert not torch.equal(whole.queries.value[0], part.queries.value[0])


@pytest.mark.parametrize("seed", [0, 1])
def test_attention_values_equal_autograd(seed):
    query, key, _indexer, selection = inputs(seed)
    upstream = torch.randn(ROWS, HEADS, 512, generator=torch.Generator().manual_seed(9))
    found = attention_slot_values(query, key, selection, upstream, SCALE)
    q, k = query.double().requires_grad_(), key.double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for row, ids in enumerate(selection):
        chosen = ids[ids >= 0]
        if len(chosen):
            p = torch.softmax(q[row] @ k[chosen].T * SCALE, 1)
            total = total + (p @ k[chosen][:, :512] * upstream[row].double()).sum()
    total.backward()
    torch.testing.assert_close(found.grad_query.value.double(), q.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.grad_key.value.double(), k.grad, rtol=1e-4, atol=1e-5)
    assert (found.grad_query.value[2] == 0).all()
