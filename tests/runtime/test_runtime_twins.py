"""Runs to compare with: what stays the same, what changes, and in what order a step goes."""

from __future__ import annotations

import pytest

from harness.layout import pack_sequences
from harness.runtime.model_step import steps_of
from harness.runtime.twins import Role, twin_at_size
from harness.scenario.rules.lengths import build_pack
from harness.scenario.spec import (
    CompareSpec,
    MicrobatchSpec,
    ModelSpec,
    ParallelSpec,
    Scenario,
)


def scenario(**microbatch) -> Scenario:
    return Scenario(
        id="a/b",
        summary="A twin.",
        model=ModelSpec(name="small"),
        parallel=ParallelSpec(context_parallel_size=4, tensor_model_parallel_size=2),
        microbatches=(MicrobatchSpec(**microbatch),),
        compare=CompareSpec(context_parallel_size=(1,)),
    )


def test_a_twin_keeps_the_padded_lengths_and_so_the_packed_positions():
    first = scenario(sequences=(701, 30, 0))
    twin = twin_at_size(first, 1)
    pack, again = build_pack(first.microbatches[0], 4), build_pack(twin.microbatches[0], 1)
    assert pack.q_padded == again.q_padded == (704, 32, 0)
    assert (pack.total_q, pack.total_k) == (again.total_q, again.total_k)
    # Left to itself, CP 1 pads nothing.
    assert pack_sequences((701, 30, 0), cp_size=1).q_padded == (701, 30, 0)


def test_a_twin_keeps_key_lengths_of_their_own():
    first = scenario(sequences=(64, 30), kv_sequences=(60, 32))
    twin = twin_at_size(first, 2)
    assert (
        build_pack(twin.microbatches[0], 2).k_padded
        == build_pack(first.microbatches[0], 4).k_padded
    )


def test_a_twin_changes_the_size_alone_and_is_not_compared_again():
    first = scenario(sequences=(64,))
    twin = twin_at_size(first, 1)
    assert twin.parallel == ParallelSpec(context_parallel_size=1, tensor_model_parallel_size=2)
    assert twin.compare == CompareSpec()
    assert (twin.model, twin.values, twin.training) == (first.model, first.values, first.training)


@pytest.mark.parametrize(
    ("schedule", "steps"),
    [
        (None, [("F", 0), ("F", 1), ("B", 0), ("B", 1)]),
        (("F0", "B0", "F1", "B1"), [("F", 0), ("B", 0), ("F", 1), ("B", 1)]),
        (("F0", "F1", "B1", "B0"), [("F", 0), ("F", 1), ("B", 1), ("B", 0)]),
    ],
)
def test_steps_follow_the_schedule(schedule, steps):
    assert steps_of(schedule, 2) == steps


def test_a_role_without_prefix_leaves_names_alone():
    record = object()
    assert Role().named(record) is record
