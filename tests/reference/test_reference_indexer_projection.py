"""Gradients of the indexer's parameters: closed form against autograd of a plain forward."""

import math

import pytest
import torch

from harness.reference.expected import Expected, compare_expected
from harness.reference.indexer_projection import IndexerProjection, Rotary, parameter_gradients
from harness.reference.tolerances import load_tolerances

ROWS, HIDDEN, RANK, HEADS, DIM, ROTARY = 24, 20, 12, 3, 16, 8


def forward(parts, parameters, positions, *, interleaved):
    """Indexer queries, keys and weights, written with complex numbers."""
    x, c = parts
    wq, wk, gamma, beta, ww = parameters
    q = (c @ wq.T).view(ROWS, HEADS, DIM)
    k = torch.nn.functional.layer_norm(x @ wk.T, (DIM,), gamma, beta, eps=1e-5)
    w = (x @ ww.T) * (HEADS * DIM) ** -0.5

    def rope(t):
        head, rest = t[..., :ROTARY], t[..., ROTARY:]
        half = ROTARY // 2
        if interleaved:
            pairs = torch.view_as_complex(head.reshape(*head.shape[:-1], half, 2).contiguous())
        else:
            pairs = torch.complex(head[..., :half].contiguous(), head[..., half:].contiguous())
        angle = positions.double()[:, None] * 100.0 ** (-torch.arange(half).double() / half)
        turn = torch.polar(torch.ones_like(angle), angle)
        turn = turn.view(ROWS, *(1,) * (t.dim() - 2), half)
        turned = pairs * turn
        return torch.cat((turned.real, turned.imag, rest), dim=-1)

    return rope(q), rope(k), w


def case(*, interleaved):
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    parts = (normal(ROWS, HIDDEN), normal(ROWS, RANK))
    parameters = [
        normal(HEADS * DIM, RANK),
        normal(DIM, HIDDEN),
        1 + 0.1 * normal(DIM),
        normal(DIM),
        normal(HEADS, HIDDEN),
    ]
    positions = torch.arange(ROWS) % 9
    grads = (normal(ROWS, HEADS, DIM), normal(ROWS, DIM), normal(ROWS, HEADS))
    leaves = [p.clone().requires_grad_(True) for p in parameters]
    outputs = forward(parts, leaves, positions, interleaved=interleaved)
    torch.autograd.backward(outputs, grads)
    names = (
        "linear_wq_b.weight",
        "linear_wk.weight",
        "k_norm.weight",
        "k_norm.bias",
        "linear_weights_proj.weight",
    )
    due = dict(zip(names, (leaf.grad for leaf in leaves), strict=True))
    projection = IndexerProjection(
        hidden=parts[0],
        low_rank=parts[1],
        positions=positions,
        key_weight=parameters[1],
        norm_weight=parameters[2],
        norm_epsilon=1e-5,
        num_heads=HEADS,
        rotary=Rotary(dim=ROTARY, base=100.0, interleaved=interleaved),
    )
    return projection, grads, due


def closed_form(projection, grads):
    q, k, w = (
        Expected(value=g, scale=g.abs(), slack=torch.full_like(g, 1e-9), length=4) for g in grads
    )
    return parameter_gradients(projection, grad_q=q, grad_k=k, grad_weights=w)


@pytest.mark.parametrize("interleaved", [False, True])
def test_closed_form_equals_autograd(interleaved):
    projection, grads, due = case(interleaved=interleaved)
    found = closed_form(projection, grads)
    assert found.keys() == due.keys()
    for name, expected in found.items():
        torch.testing.assert_close(expected.value, due[name], rtol=1e-10, atol=1e-10)
        assert bool((expected.scale > 0).all())
        assert expected.slack is not None
        assert bool((expected.slack > 0).all())


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_a_right_gradient_is_within_bounds_and_a_slightly_wrong_one_is_not(dtype):
    projection, grads, due = case(interleaved=False)
    tolerances = load_tolerances()
    size = {"bf16": 0.2, "fp32": 1e-3}[dtype]
    for name, expected in closed_form(projection, grads).items():
        common = {"dtype": dtype, "tolerances": tolerances}
        right = due[name].to(torch.bfloat16 if dtype == "bf16" else torch.float32)
        assert compare_expected(f"grad.param.{name}", right, expected, **common).within
        wrong = due[name] * (1 + size)
        assert not compare_expected(f"grad.param.{name}", wrong, expected, **common).within


def test_positions_count():
    """A rotation by other positions gives other gradients: the comparison can tell."""
    projection, grads, due = case(interleaved=False)
    moved = IndexerProjection(
        **{name: getattr(projection, name) for name in projection.__slots__ if name != "positions"},
        positions=projection.positions + 1,
    )
    found = closed_form(moved, grads)["linear_wq_b.weight"].value
    assert not math.isclose(float((found - due["linear_wq_b.weight"]).abs().max()), 0, abs_tol=0.1)
