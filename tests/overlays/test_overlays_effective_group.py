"""Overlay effective_group: the microbatch's group within a call, the caller's one after it."""

from __future__ import annotations

import types

import overlay_builds
import pytest

from harness.overlays import effective_group
from harness.overlays.effective_group import Alone, group_of
from harness.overlays.refusal import OverlayRefusedError


class Group:
    """A process group by size and rank alone."""

    def __init__(self, size: int, rank: int = 0) -> None:
        self._size, self._rank = size, rank

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank


STATIC, PAIR, ONE = Group(4, 3), Group(2, 1), Group(1)


def params(size=None, group=None):
    return types.SimpleNamespace(local_cp_size=size, cp_group=group)


def module(cp_comm_type="p2p", configured="all_gather", size=4):
    collection = types.SimpleNamespace(cp=STATIC)
    return types.SimpleNamespace(
        pg_collection=collection,
        indexer=types.SimpleNamespace(pg_collection=types.SimpleNamespace(cp=STATIC)),
        config=types.SimpleNamespace(context_parallel_size=size, cp_comm_type=configured),
        cp_comm_type=cp_comm_type,
        layer_number=2,
    )


def state(part):
    return (
        part.pg_collection.cp,
        part.indexer.pg_collection.cp,
        part.config.context_parallel_size,
        part.cp_comm_type,
    )


def seen_by(part, microbatch, fail=False):
    """State within a call of a module for a microbatch."""
    seen = []

    def forward(self, packed_seq_params=None):
        seen.append(state(self))
        if fail:
            raise KeyError("within")

    effective_group._on_group(forward, carried=True)(part, packed_seq_params=microbatch)
    return seen[0]


@pytest.mark.parametrize("configured", ["all_gather", ["p2p", "allgather"], None])
def test_a_call_sees_the_microbatchs_group_and_leaves_the_callers(configured):
    part = module(configured=configured)
    before = state(part)
    assert seen_by(part, params(2, PAIR)) == (PAIR, PAIR, 2, "allgather")
    assert state(part) == before


@pytest.mark.parametrize(
    ("size", "configured", "held"),
    [(1, "all_gather", "allgather"), (1, None, "p2p"), (4, "all_gather", "p2p")],
)
def test_a_layer_built_without_context_parallelism_is_told_the_communication(
    size, configured, held
):
    part = module()

    def build(self, config):
        self.config, self.cp_comm_type = config, "p2p"

    config = types.SimpleNamespace(context_parallel_size=size, cp_comm_type=configured)
    effective_group._with_comm_type(build)(part, config)
    assert part.cp_comm_type == held


def test_a_size_of_one_needs_no_group_and_no_communication():
    part = module()
    found = seen_by(part, params(1))
    assert isinstance(found[0], Alone)
    assert (found[0].size(), found[0].rank(), *found[2:]) == (1, 0, 1, "p2p")
    assert seen_by(part, params(1, ONE))[0] is ONE


def test_microbatches_without_a_group_run_as_they_did():
    part = module()
    assert seen_by(part, params()) == state(part)
    assert seen_by(part, None) == state(part)


def test_an_exception_puts_the_callers_group_back():
    part = module()
    before = state(part)
    with pytest.raises(KeyError):
        seen_by(part, params(2, PAIR), fail=True)
    assert state(part) == before


def test_a_microbatch_within_another_puts_back_what_it_found():
    part, seen = module(), []

    def inner(self, packed_seq_params=None):
        seen.append(state(self)[0])

    def outer(self, packed_seq_params=None):
        effective_group._on_group(inner, carried=True)(self, packed_seq_params=params(1, ONE))
        seen.append(state(self)[0])

    effective_group._on_group(outer, carried=True)(part, packed_seq_params=params(2, PAIR))
    assert [*seen, state(part)[0]] == [ONE, PAIR, STATIC]


@pytest.mark.parametrize(
    ("microbatch", "said"),
    [
        (params(2), "needs a cp_group of as many ranks, found none"),
        (params(4, PAIR), "expected a cp_group of local_cp_size 4 ranks, found one of 2"),
    ],
)
def test_a_group_that_is_missing_or_of_another_size_is_refused(microbatch, said):
    with pytest.raises(ValueError, match=said):
        group_of(microbatch)


def test_projections_do_not_see_the_size_that_the_release_refuses_and_it_is_back_after():
    seen, microbatch = [], params(2, PAIR)

    def project(self, hidden, packed_seq_params=None):
        seen.append(packed_seq_params.local_cp_size)
        raise KeyError

    projected = effective_group._on_group(project, carried=False)
    with pytest.raises(KeyError):
        projected(module(), "hidden", microbatch)
    assert seen == [None]
    assert microbatch.local_cp_size == 2


class Recomputing:
    """As ``CheckpointWithoutOutput``: keeps the function of the first run for the second."""

    def checkpoint(self, function, *inputs):
        self.function, self.inputs = function, inputs
        return function(*inputs)

    def replay(self):
        return self.function(*self.inputs)


def recomputed(on_same_group: bool) -> list:
    """Groups of the first run and of the replay of a function that a layer recomputes."""
    released = types.SimpleNamespace(CheckpointWithoutOutput=Recomputing)
    tensor_parallel = effective_group._ReplayedOnGroup(released) if on_same_group else released
    part, made, groups = module(), [], []

    def up_projection(value):
        groups.append(part.pg_collection.cp)

    def project(self, packed_seq_params=None):
        made.append(tensor_parallel.CheckpointWithoutOutput())
        made[0].checkpoint(up_projection, 1)

    effective_group._on_group(project, carried=False)(part, packed_seq_params=params(2, PAIR))
    made[0].replay()
    assert part.pg_collection.cp is STATIC
    return groups


def test_a_replay_enters_the_group_of_its_forward_again():
    assert recomputed(on_same_group=True) == [PAIR, PAIR]
    # As released: what backward computes again finds the group that is there by then.
    assert recomputed(on_same_group=False) == [PAIR, STATIC]


def test_it_stands_in_the_attention_classes_and_a_build_with_dynamic_cp_is_refused(monkeypatch):
    from megatron.core.transformer.transformer_config import TransformerConfig

    forward = overlay_builds.module("dsa").DSAttention.forward
    undo = effective_group.install()
    assert overlay_builds.module("dsa").DSAttention.forward.__wrapped__ is forward
    undo()
    fields = TransformerConfig.__dataclass_fields__ | {"dynamic_context_parallel": None}
    monkeypatch.setattr(TransformerConfig, "__dataclass_fields__", fields)
    before = overlay_builds.snapshot()
    with pytest.raises(OverlayRefusedError, match="has dynamic_context_parallel"):
        effective_group.install()
    assert overlay_builds.snapshot() == before
