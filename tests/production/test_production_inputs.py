"""Inputs depend on the token alone, never on the rank or on how its rows are cut."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.layout import local_runs, pack_sequences
from harness.production.inputs import BLOCK_TOKENS, InputSource
from harness.scenario.spec import ValuesSpec


def source(scores="normal", seed=0, **kw):
    return InputSource(values=ValuesSpec(scores=scores), seed=seed, microbatch=0, **kw)


@settings(max_examples=30, deadline=None)
@given(start=st.integers(0, 3 * BLOCK_TOKENS), length=st.integers(0, 2 * BLOCK_TOKENS))
def test_any_run_is_a_slice_of_the_whole(start, length):
    whole = source().rows("q", (3,), [(0, 6 * BLOCK_TOKENS)])
    assert torch.equal(source().rows("q", (3,), [(start, length)]), whole[start : start + length])


def test_ranks_of_every_cp_size_see_the_same_tokens():
    whole = source().rows("q", (2,), [(0, 64)])
    for cp_size in (1, 2, 4):
        pack = pack_sequences([64], cp_size=cp_size)
        for cp_rank in range(cp_size):
            runs = local_runs(pack, cp_rank)
            rows = torch.cat([torch.arange(start, start + length) for start, length in runs])
            assert torch.equal(source().rows("q", (2,), runs), whole[rows])


def test_seed_name_microbatch_and_stream_change_the_values():
    base = source().rows("q", (2,), [(0, 8)])
    assert not torch.equal(base, source(seed=1).rows("q", (2,), [(0, 8)]))
    assert not torch.equal(base, source().rows("k", (2,), [(0, 8)]))
    assert not torch.equal(base, source(stream=1).rows("q", (2,), [(0, 8)]))


def test_kinds_of_values():
    ties = source("ties").rows("q", (4,), [(0, 256)])
    assert set(ties.unique().tolist()) == {-1.0, 0.0, 1.0}
    integers = source("integers").rows("q", (4,), [(0, 256)])
    assert integers.abs().max() == 3 and torch.equal(integers, integers.round())
    weights = source("underflow").rows("weights", (4,), [(0, 256)])
    assert weights.max() < -65504 / 2
