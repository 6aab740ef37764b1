"""Divergence of the indexer beside plain Python loops and autograd."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from values_brute import (
    KINDS,
    attention_case,
    brute_kl,
    keys_of,
    random_ids,
    supports,
    with_grad,
)

from harness.reference.indexer_loss import indexer_kl, indexer_reference
from harness.reference.support import Selected

CLOSE = {"atol": 1e-12, "rtol": 1e-12}
ROW_WEIGHTS = torch.tensor([0.5, 0.0, 2.0, 1.0, 0.25, 3.0], dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("relu", [True, False])
def test_divergence_equals_plain_python(kind, relu):
    attention, indexer = attention_case()
    support = supports()[kind]
    expected = brute_kl(indexer, attention, keys_of(support), relu=relu)
    assert (expected > 0.01).sum() >= 3
    found = indexer_kl(indexer, attention, support, relu=relu)
    closed = indexer_reference(indexer, attention, support, ROW_WEIGHTS, relu=relu)
    torch.testing.assert_close(found, expected, **CLOSE)
    torch.testing.assert_close(closed.kl.value, expected, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("relu", [True, False])
def test_closed_form_gradients_equal_autograd(kind, relu):
    attention, indexer = attention_case()
    indexer = with_grad(indexer, "q", "k", "w")
    attention = with_grad(attention, "query", "key")
    support = supports()[kind]
    loss = (indexer_kl(indexer, attention, support, relu=relu) * ROW_WEIGHTS).sum()
    gradients = torch.autograd.grad(
        loss, (indexer.q, indexer.k, indexer.w), retain_graph=True, materialize_grads=True
    )
    closed = indexer_reference(indexer, attention, support, ROW_WEIGHTS, relu=relu)
    for one, other in zip(
        (closed.grad_q, closed.grad_k, closed.grad_weights), gradients, strict=True
    ):
        torch.testing.assert_close(one.value, other, atol=1e-9, rtol=1e-9)
    # The target takes no gradient.
    for leaf in (attention.query, attention.key):
        assert torch.autograd.grad(loss, leaf, retain_graph=True, allow_unused=True) == (None,)


@pytest.mark.parametrize("kind", KINDS)
def test_divergence_passes_gradcheck(kind):
    attention, indexer = attention_case()
    indexer = with_grad(indexer, "q", "k", "w")
    support = supports()[kind]

    def run(q, k, w):
        return indexer_kl(replace(indexer, q=q, k=k, w=w), attention, support)

    assert torch.autograd.gradcheck(run, (indexer.q, indexer.k, indexer.w), atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_keys_or_weight_contribute_nothing(kind):
    attention, indexer = attention_case()
    support = supports()[kind]
    empty = torch.tensor([not keys for keys in keys_of(support)])
    assert empty.any()
    found = indexer_reference(indexer, attention, support, empty.double())
    assert found.kl.value[empty].eq(0).all()
    for gradient in (found.grad_q, found.grad_k, found.grad_weights):
        assert gradient.value.eq(0).all()
        assert gradient.scale.eq(0).all()
    weights = ROW_WEIGHTS.clone()
    found = indexer_reference(indexer, attention, support, weights)
    assert found.grad_q.value[1].eq(0).all()
    assert found.grad_weights.value[1].eq(0).all()


def test_a_single_key_leaves_nothing_to_learn():
    attention, indexer = attention_case(rows=2)
    support = Selected.of(torch.tensor([[4], [1]]), num_keys=7)
    found = indexer_reference(indexer, attention, support, torch.ones(2))
    assert found.kl.value.eq(0).all()
    assert found.grad_q.value.eq(0).all()
    assert found.grad_weights.value.eq(0).all()


def test_a_perfect_indexer_has_no_divergence_and_no_gradient():
    attention, indexer = attention_case(rows=2)
    # One head of attention, and indexer scores equal to its logits: both softmaxes are the same.
    attention = replace(attention, query=attention.query[:, :1], up_v=attention.up_v[:1])
    indexer = replace(
        indexer,
        q=attention.query,
        k=attention.key,
        w=torch.full((2, 1), attention.softmax_scale, dtype=torch.float64),
    )
    support = Selected.of(torch.tensor([[0, 3, 5], [1, 2, -1]]), num_keys=7)
    found = indexer_reference(indexer, attention, support, torch.ones(2), relu=False)
    assert found.kl.value.abs().max() < 1e-15
    assert found.grad_q.value.abs().max() < 1e-15


def test_the_target_is_the_mean_over_heads():
    attention, indexer = attention_case()
    support = supports()["selected"]
    twice = replace(attention, query=torch.cat([attention.query] * 2, dim=1), up_v=None)
    torch.testing.assert_close(
        indexer_kl(indexer, twice, support), indexer_kl(indexer, attention, support), **CLOSE
    )


def test_far_scores_keep_a_finite_divergence_and_their_gradient():
    attention, indexer = attention_case()
    far = replace(indexer, w=indexer.w * 1e5)
    support = supports()["selected"]
    kl = indexer_kl(far, attention, support)
    expected = brute_kl(far, attention, keys_of(support))
    torch.testing.assert_close(kl, expected, atol=0, rtol=1e-12)
    assert kl.max() > 1e3
    found = indexer_reference(far, attention, support, torch.ones(6))
    # A key whose predicted probability vanishes still pulls: dKL/dI = -target there.
    assert found.grad_weights.value.abs().max() > 0.01


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk_bytes", [1, 3000])
def test_chunks_change_rounding_only(kind, chunk_bytes):
    attention, indexer = attention_case()
    support = supports()[kind]
    whole = indexer_reference(indexer, attention, support, ROW_WEIGHTS)
    cut = indexer_reference(
        indexer, replace(attention, chunk_bytes=chunk_bytes), support, ROW_WEIGHTS
    )
    for name in ("kl", "grad_q", "grad_k", "grad_weights"):
        one, other = getattr(whole, name), getattr(cut, name)
        torch.testing.assert_close(one.value, other.value, **CLOSE)
        torch.testing.assert_close(one.scale, other.scale, **CLOSE)


def test_slack_lies_where_a_product_may_fall_either_side_of_the_kink():
    attention, indexer = attention_case(rows=1)
    support = Selected.of(torch.tensor([[0, 2, 4]]), num_keys=7)
    clear = indexer_reference(indexer, attention, support, torch.ones(1))
    assert clear.grad_q.slack.eq(0).all()
    assert clear.grad_k.slack.eq(0).all()
    # Turn head 1 of the query until its product with key 2 is hardly above 0.
    q, key = indexer.q.clone(), indexer.k[2]
    q[0, 1] -= (q[0, 1] @ key) / (key @ key) * key
    q[0, 1] += 1e-9 * key
    found = indexer_reference(replace(indexer, q=q), attention, support, torch.ones(1))
    assert found.grad_q.slack.flatten().gt(0).tolist() == [False, True, False]
    assert found.grad_k.slack.flatten().gt(0).tolist() == [n == 2 for n in range(7)]
    below = q.clone()
    below[0, 1] -= 2e-9 * key
    other = indexer_reference(replace(indexer, q=below), attention, support, torch.ones(1))
    for name in ("grad_q", "grad_k"):
        one, two = getattr(found, name), getattr(other, name)
        differences = (one.value - two.value).abs()
        assert differences.max() > 1e-3
        assert (differences <= one.slack + 1e-9).all()


def test_an_exact_zero_does_not_pass_the_relu_and_has_no_slack():
    attention, indexer = attention_case(rows=1)
    support = Selected.of(torch.tensor([[0, 2, 4]]), num_keys=7)
    found = indexer_reference(
        replace(indexer, q=torch.zeros_like(indexer.q)), attention, support, torch.ones(1)
    )
    assert found.grad_q.value.eq(0).all()
    assert found.grad_q.slack.eq(0).all()


def test_operands_of_other_rows_are_refused():
    attention, indexer = attention_case()
    other, _ = attention_case(rows=5)
    support = Selected.of(random_ids(5, 7, 3), num_keys=7)
    with pytest.raises(ValueError, match=r"the indexer has 6 rows and 7 keys, but attention has 5"):
        indexer_kl(indexer, other, support)
    with pytest.raises(ValueError, match=r"the support is of 5 rows and 7 keys"):
        indexer_kl(indexer, attention, support)
    with pytest.raises(ValueError, match=r"row_weights must be \(6,\), found \(5,\)"):
        indexer_reference(indexer, attention, supports()["selected"], torch.ones(5))
