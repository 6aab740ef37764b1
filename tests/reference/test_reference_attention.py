"""Reference attention beside plain Python loops and autograd, and what must not change a bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from values_brute import (
    HEADS,
    KINDS,
    LATENT,
    VALUE,
    attention_case,
    brute_attention,
    keys_of,
    random_ids,
    supports,
    with_grad,
)

from harness.reference.attention import attention
from harness.reference.attention_gradients import attention_reference
from harness.reference.support import Selected, Visible

CLOSE = {"atol": 1e-12, "rtol": 1e-12}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("up_v", [True, False])
def test_output_and_lse_equal_plain_python(kind, up_v):
    operands, _ = attention_case(up_v=up_v)
    support = supports()[kind]
    output, lse = brute_attention(operands, keys_of(support))
    found = attention(operands, support)
    closed = attention_reference(operands, support)
    torch.testing.assert_close(found.output, output, **CLOSE)
    torch.testing.assert_close(found.lse, lse, **CLOSE)
    torch.testing.assert_close(closed.output.value, output, **CLOSE)
    torch.testing.assert_close(closed.lse, lse, **CLOSE)
    assert closed.grad_key is None
    assert found.latent.shape == (6, HEADS, LATENT)
    assert found.output.shape == (6, HEADS, VALUE if up_v else LATENT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("up_v", [True, False])
def test_closed_form_gradients_equal_autograd(kind, up_v):
    names = ("query", "key", "up_v") if up_v else ("query", "key")
    operands = with_grad(attention_case(up_v=up_v)[0], *names)
    support = supports()[kind]
    output = attention(operands, support).output
    upstream = torch.randn_like(output)
    gradients = torch.autograd.grad(output, [getattr(operands, n) for n in names], upstream)
    closed = attention_reference(operands, support, upstream)
    found = [getattr(closed, f"grad_{name}").value for name in names]
    for name, one, other in zip(names, found, gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=1e-9, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_differentiable_attention_passes_gradcheck(kind):
    operands = with_grad(attention_case()[0], "query", "key", "up_v")
    support = supports()[kind]

    def run(query, key, up_v):
        found = attention(replace(operands, query=query, key=key, up_v=up_v), support)
        # A row without keys has lse -inf, of which no difference can be taken.
        return found.output, found.lse[found.lse > -torch.inf]

    leaves = (operands.query, operands.key, operands.up_v)
    assert torch.autograd.gradcheck(run, leaves, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_without_keys_are_zero_and_pass_no_gradient(kind):
    operands, _ = attention_case()
    support = supports()[kind]
    empty = [row for row, keys in enumerate(keys_of(support)) if not keys]
    assert empty
    upstream = torch.zeros(6, HEADS, VALUE, dtype=torch.float64)
    upstream[empty] = 1.0
    found = attention_reference(operands, support, upstream)
    assert found.output.value[empty].eq(0).all()
    assert found.lse[empty].eq(-torch.inf).all()
    for value in (found.grad_query, found.grad_key, found.grad_up_v):
        assert value.value.eq(0).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk_bytes", [1, 4000, 20000])
def test_chunks_change_rounding_only(kind, chunk_bytes):
    operands, _ = attention_case()
    support = supports()[kind]
    upstream = torch.randn(6, HEADS, VALUE, dtype=torch.float64)
    whole = attention_reference(operands, support, upstream)
    small = replace(operands, chunk_bytes=chunk_bytes)
    blocks = list(small.blocks(support))
    assert [row for b in blocks for row in range(b.rows.start, b.rows.stop)] == list(range(6))
    cut = attention_reference(small, support, upstream)
    for name in ("output", "grad_query", "grad_key", "grad_up_v"):
        one, other = getattr(whole, name), getattr(cut, name)
        torch.testing.assert_close(one.value, other.value, **CLOSE)
        torch.testing.assert_close(one.scale, other.scale, **CLOSE)
    torch.testing.assert_close(attention(small, support).output, whole.output.value, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("budget", [1, 40, 90, 10_000])
def test_blocks_hold_no_more_than_the_budget(kind, budget):
    support = supports()[kind]
    blocks = list(support.blocks(row_numbers=3, key_numbers=5, budget=budget))
    for block in blocks:
        rows, keys = block.mask.shape
        gathered = keys if kind == "visible" else rows * keys
        assert rows == 1 or 3 * rows * keys + 5 * gathered <= budget
    if budget == 10_000:
        # The dense rows fall into runs that start at the same key.
        assert len(blocks) == (3 if kind == "visible" else 1)


def test_order_of_slots_and_empty_slots_change_no_bit():
    operands, _ = attention_case()
    ids = random_ids(6, 7, 4, empty_rows=(2,))
    shuffled = torch.cat([ids.flip(1), torch.full((6, 3), -1)], dim=1)
    upstream = torch.randn(6, HEADS, VALUE, dtype=torch.float64)
    one = attention_reference(operands, Selected.of(ids, num_keys=7), upstream)
    other = attention_reference(operands, Selected.of(shuffled, num_keys=7), upstream)
    assert torch.equal(one.output.value, other.output.value)
    assert torch.equal(one.grad_key.value, other.grad_key.value)


def test_selecting_all_visible_keys_is_dense_attention():
    operands, _ = attention_case()
    visible = supports()["visible"]
    ids = torch.full((6, 7), -1)
    for row, keys in enumerate(keys_of(visible)):
        ids[row, : len(keys)] = torch.tensor(keys, dtype=torch.int64)
    upstream = torch.randn(6, HEADS, VALUE, dtype=torch.float64)
    dense = attention_reference(operands, visible, upstream)
    sparse = attention_reference(operands, Selected.of(ids, num_keys=7), upstream)
    for name in ("output", "grad_query", "grad_key", "grad_up_v"):
        torch.testing.assert_close(getattr(dense, name).value, getattr(sparse, name).value, **CLOSE)


def test_an_unused_key_changes_no_bit_and_takes_no_gradient():
    operands, _ = attention_case()
    support = Selected.of(random_ids(6, 6, 4), num_keys=7)
    changed = operands.key.clone()
    changed[6] = 1e6
    upstream = torch.randn(6, HEADS, VALUE, dtype=torch.float64)
    one = attention_reference(operands, support, upstream)
    other = attention_reference(replace(operands, key=changed), support, upstream)
    assert torch.equal(one.output.value, other.output.value)
    assert other.grad_key.value[6].eq(0).all()


def test_great_logits_neither_overflow_nor_vanish():
    operands, _ = attention_case()
    operands = replace(operands, softmax_scale=1e4)
    found = attention_reference(operands, supports()["selected"], torch.ones(6, HEADS, VALUE))
    for value in (found.output, found.grad_query, found.grad_key):
        assert torch.isfinite(value.value).all()


def test_fp32_and_fp64_agree_on_bf16_inputs_of_production_width():
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(8, 4, 576, generator=generator).bfloat16()
    key = torch.randn(64, 576, generator=generator).bfloat16()
    support = Selected.of(random_ids(8, 64, 32), num_keys=64)
    operands, _ = attention_case()
    operands = replace(
        operands, query=query, key=key, up_v=None, latent_dim=512, softmax_scale=192**-0.5
    )
    upstream = torch.randn(8, 4, 512, generator=generator)
    fine = attention_reference(operands, support, upstream)
    coarse = attention_reference(replace(operands, dtype="fp32"), support, upstream)
    assert coarse.output.value.dtype == torch.float32
    for name in ("output", "grad_query", "grad_key"):
        one, other = getattr(fine, name), getattr(coarse, name)
        part = (one.value - other.value).abs() / one.scale.clamp_min(1e-30)
        assert part.max() < 2.0**-18


def test_no_rows_and_no_slots():
    operands, _ = attention_case(rows=0)
    none = Selected.of(torch.empty(0, 3, dtype=torch.int64), num_keys=7)
    assert attention(operands, none).output.shape == (0, HEADS, VALUE)
    assert attention_reference(operands, none).output.value.shape == (0, HEADS, VALUE)
    operands, _ = attention_case(rows=2)
    slotless = Selected.of(torch.empty(2, 0, dtype=torch.int64), num_keys=7)
    assert attention(operands, slotless).output.eq(0).all()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[0, 1, 1]], r"row 0: key 1 is selected twice; use clean_picks"),
        ([[0, 7, -1]], r"must lie in \[-1, 7\), found -1 to 7"),
        ([[0, -2, 1]], r"must lie in \[-1, 7\), found -2 to 1"),
        ([[0.0, 1.0]], r"must be \(rows, slots\) integers, found \(1, 2\) of torch.float32"),
    ],
)
def test_bad_ids_are_refused(ids, message):
    with pytest.raises(ValueError, match=message):
        Selected.of(torch.tensor(ids), num_keys=7)


def test_bad_ranges_are_refused():
    with pytest.raises(ValueError, match=r"row 1: keys \[5, 8\) are not inside \[0, 7\]"):
        Visible.of(torch.tensor([0, 5]), torch.tensor([7, 3]), num_keys=7)
    with pytest.raises(ValueError, match=r"there are 2 rows and 0 keys"):
        Visible.of(torch.tensor([0, 0]), torch.tensor([0, 0]), num_keys=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": torch.zeros(6, 5)}, r"query must be \(rows, heads, dim\)"),
        ({"key": torch.zeros(7, 1, 5)}, r"key must be \(keys, dim=5\), found shape \(7, 1, 5\)"),
        ({"latent_dim": 6}, r"latent_dim must be in \[1, 5\]"),
        ({"up_v": torch.zeros(2, 4, 5)}, r"up_v must be \(heads=2, value_dim, latent_dim=3\)"),
        ({"dtype": "bf16"}, r"reference dtype must be one of \['fp32', 'fp64'\], found 'bf16'"),
        ({"key": torch.full((7, 5), torch.nan)}, r"key holds NaN or infinite values"),
    ],
)
def test_bad_operands_are_refused(changes, message):
    operands, _ = attention_case()
    with pytest.raises(ValueError, match=message):
        replace(operands, **changes)


def test_operands_and_support_of_other_rows_are_refused():
    operands, _ = attention_case()
    support = Selected.of(random_ids(5, 7, 4), num_keys=7)
    with pytest.raises(ValueError, match=r"the support is of 5 rows and 7 keys, but there are 6"):
        attention(operands, support)
    support = supports()["selected"]
    with pytest.raises(ValueError, match=r"grad_output must be \(6, 2, 4\), found \(6, 8\)"):
        attention_reference(operands, support, torch.zeros(6, 8))
