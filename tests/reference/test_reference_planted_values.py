"""Tolerances let right kernels pass, and every planted mistake is found where it shows.

The right kernel and the wrong ones are one computation (``values_rounded``) with a switch, at
production head dimensions.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest
import torch
from values_rounded import Faults, run_rounded

from harness.layout import pack_sequences
from harness.reference.expected import Expected, compare_expected
from harness.reference.group_values import GroupInputs, exact_picks, group_values, packed_rows
from harness.reference.loss_terms import CountedRows, LossReduction, LossSpec
from harness.reference.tolerances import load_tolerances

COEFF = 0.01
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
PACK = pack_sequences([64, 61, 24], cp_size=2)
UNEQUAL = pack_sequences([20], padded=[64], cp_size=2)
"""Rank 0 holds 16 real rows and rank 1 holds 4."""
ROWS = {
    "attention_output": "output",
    "grad.query": "grad_query",
    "grad.q_indexer": "grad_q_indexer",
    "grad.weights": "grad_weights",
}


def draw(pack, dtype, seed, mean):
    generator = torch.Generator().manual_seed(seed)
    rows, keys, heads = pack.total_q, pack.total_k, 4

    def normal(*shape, scale=1.0):
        return ((torch.randn(shape, generator=generator) + mean) * scale).to(DTYPES[dtype])

    inputs = GroupInputs(
        query=normal(rows, heads, 576),
        key=normal(keys, 576),
        softmax_scale=192**-0.5,
        up_v=normal(heads, 128, 512, scale=512**-0.5),
        q_indexer=normal(rows, 32, 128),
        k_indexer=normal(keys, 128),
        weights=normal(rows, 32, scale=1 / 64),
        dtype="fp64",
    )
    return inputs, normal(rows, heads, 128)


@cache
def case(dtype="bf16", *, pack=PACK, seed=0, mean=0.0, reduction=LossReduction.RANK_MEAN):
    """Return inputs, upstream gradient, picks and expected values by name, rows packed."""
    inputs, grad_output = draw(pack, dtype, seed, mean)
    picks = exact_picks(inputs, pack, topk=16)
    loss = LossSpec(coeff=COEFF, sparse=True, reduction=reduction, counted=CountedRows.REAL)
    values = group_values(inputs, pack, picks, loss=loss, grad_output=grad_output)
    expected = {
        "indexer_loss": values.loss,
        "grad.key": values.shared.key,
        "grad.k_indexer": values.shared.k_indexer,
        "grad.up_v": values.shared.up_v,
    }
    for name, field in ROWS.items():
        parts = [getattr(rank, field) for rank in values.ranks]
        tensors = {
            key: packed_rows([getattr(part, key) for part in parts], pack)
            for key in ("value", "scale", "slack")
            if getattr(parts[0], key) is not None
        }
        expected[name] = Expected(**tensors, length=max(part.length for part in parts))
    return (inputs, pack, picks, grad_output), expected


def compared(actual, expected, dtype="bf16"):
    tolerances = load_tolerances()
    return {
        name: compare_expected(
            name, actual[name], expected[name], dtype=dtype, tolerances=tolerances
        )
        for name in expected
    }


def build(faults=None, dtype="bf16", **which):
    arguments, expected = case(dtype, **which)
    actual = run_rounded(*arguments, coeff=COEFF, faults=faults, dtype=DTYPES[dtype])
    return compared(actual, expected, dtype)


def flagged(comparisons):
    return {name for name, found in comparisons.items() if not found.within}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("mean", [0.0, 0.5])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_right_kernel_is_within_and_has_room(dtype, mean, seed):
    for name, found in build(dtype=dtype, seed=seed, mean=mean).items():
        assert found.within, found.message
        assert found.max_bound_part < 0.75, f"{name}: {found.max_bound_part}"
        assert found.gradient == name.startswith("grad.")


BACKWARD = {"grad.query", "grad.key"}
ATTENTION = {"attention_output", "grad.up_v", *BACKWARD}
INDEXER = {"indexer_loss", "grad.q_indexer", "grad.k_indexer", "grad.weights"}
ALL = ATTENTION | INDEXER


class Mistake(NamedTuple):
    faults: Faults
    due: set[str]
    """Values that must be flagged."""
    spared: set[str]
    """Values that the mistake leaves alone."""


MISTAKES = {
    "scale_of_the_absorbed_width": Mistake(Faults(scale_factor=(192 / 576) ** 0.5), ALL, set()),
    "scale_4_percent_off": Mistake(
        Faults(scale_factor=1.04), {"attention_output", "indexer_loss", *BACKWARD}, set()
    ),
    "empty_slots_are_key_0": Mistake(Faults(empty_slots_are_key_0=True), ALL, set()),
    "heads_swapped": Mistake(
        Faults(swaps_heads=True), {"attention_output", *BACKWARD}, {"grad.up_v", *INDEXER}
    ),
    "delta_dropped": Mistake(Faults(drops_delta=True), BACKWARD, ALL - BACKWARD),
    "key_gradient_of_one_rank_dropped": Mistake(
        Faults(drops_key_gradient_of_rank=1), {"grad.key"}, ALL - {"grad.key"}
    ),
    "relu_ignored_in_backward": Mistake(
        Faults(ignores_relu_in_backward=True),
        {"grad.q_indexer", "grad.k_indexer"},
        ALL - {"grad.q_indexer", "grad.k_indexer"},
    ),
    "target_of_one_head": Mistake(Faults(target_of_one_head=True), INDEXER, ATTENTION),
    # Padding rows pull at the indexer too, where they should not at all.
    "padding_counted_in_the_mean": Mistake(Faults(mean_over_all_rows=True), INDEXER, ATTENTION),
    "one_row_misses_one_key": Mistake(
        Faults(last_row_attends_one_key_less=True), {"attention_output", *BACKWARD}, set()
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_found_where_it_shows_and_nowhere_else(mistake):
    faults, due, spared = MISTAKES[mistake]
    found = flagged(build(faults))
    assert due <= found
    assert not spared & found


def test_fp32_bounds_find_what_bf16_bounds_cannot():
    subtle = Faults(scale_factor=1.001)
    assert "attention_output" in flagged(build(subtle, dtype="fp32"))
    assert "attention_output" not in flagged(build(subtle))


@pytest.mark.parametrize("reduction", [LossReduction.SUM, LossReduction.GROUP_MEAN])
def test_a_mean_over_the_wrong_group_is_found(reduction):
    """The build averages its ranks' means; the scenario says something else."""
    assert "indexer_loss" in flagged(build(pack=UNEQUAL, reduction=reduction))
    assert not flagged(build(pack=UNEQUAL))
