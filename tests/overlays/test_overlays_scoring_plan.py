"""Overlay scoring_plan: the plan matrix, one THD call, bounds, facts for hooks, one diagnostic."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace

import overlay_builds
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.layout import expected_plan, pack_sequences, rank_segments
from harness.overlays import scoring_plan
from harness.overlays.hook_facts import with_facts
from harness.overlays.packed_scorer import halves, owned_rows
from harness.overlays.plan_facts import key_bounds
from harness.overlays.plan_resolver import CallFacts, ScoringPlan, report_once, resolve
from harness.overlays.refusal import OverlayRefusedError
from harness.production.packs import packed_seq_params

CANONICAL = {
    "packed_single_segments": "packed_single",
    "packed_thd_general": "packed_thd",
}


def facts_of(pack, **changes) -> CallFacts:
    """Facts of a pack as ``DSAttention`` hands them to the dispatcher."""
    facts = CallFacts(
        has_bounds=True,
        plain_causal=False,
        explicit_key_positions=False,
        packed=True,
        cp_size=pack.cp_size,
        batch=1,
        rows=pack.rows_per_rank,
        keys=pack.total_k,
        entries_q=pack.num_sequences,
        entries_k=pack.num_sequences,
        longest_q=pack.max_seqlen_q,
        longest_k=pack.max_seqlen_k,
    )
    return replace(facts, **changes)


def canonical(facts: CallFacts) -> str:
    plan = resolve(facts).plan.value
    return CANONICAL.get(plan, plan)


PACKS = [
    {"sequences": sequences, "tail_padding": tail, "kv_sequences": keys}
    for sequences in ([64], [64, 32], [64, 0], [0, 0], [0, 64, 0])
    for tail in (0, 16)
    for keys in (None, [32] * len(sequences))
    if any(sequences) or tail
]


@pytest.mark.parametrize(
    ("shape", "cp_size", "loss", "key_positions"),
    list(itertools.product(PACKS, (1, 2, 4), ("off", "sparse", "dense"), ("derived", "explicit"))),
)
def test_every_pack_has_the_plan_that_its_layout_calls_for(shape, cp_size, loss, key_positions):
    pack = pack_sequences(cp_size=cp_size, **shape)
    due = expected_plan(
        qkv_format="thd", cp_size=cp_size, pack=pack, key_positions=key_positions, loss=loss
    )
    facts = facts_of(
        pack,
        dense_loss=loss == "dense",
        explicit_key_positions=key_positions == "explicit",
    )
    assert canonical(facts) == due.plan


@pytest.mark.parametrize("cp_size", [1, 2])
def test_unpacked_batches_have_theirs(cp_size):
    due = expected_plan(qkv_format="sbhd", cp_size=cp_size)
    pack = pack_sequences([64], cp_size=cp_size)
    facts = facts_of(pack, packed=False, plain_causal=cp_size == 1, entries_q=None, entries_k=None)
    assert canonical(facts) == due.plan


@given(
    st.builds(
        CallFacts,
        has_bounds=st.booleans(),
        plain_causal=st.booleans(),
        explicit_key_positions=st.booleans(),
        packed=st.booleans(),
        cp_size=st.sampled_from([1, 2, 4]),
        batch=st.integers(1, 2),
        rows=st.integers(0, 9),
        keys=st.integers(0, 36),
        entries_q=st.none() | st.integers(0, 3),
        entries_k=st.none() | st.integers(0, 3),
        longest_q=st.none() | st.integers(0, 36),
        longest_k=st.none() | st.integers(0, 36),
        slice_of=st.none() | st.integers(1, 9),
        dense_loss=st.booleans(),
    )
)
@settings(max_examples=150, deadline=None)
def test_the_resolver_is_total_and_promises_no_kernel_what_it_cannot_take(facts):
    decision = resolve(facts)
    assert decision.reason
    if decision.plan is ScoringPlan.PACKED_THD_GENERAL:
        assert facts.batch == 1
        assert facts.slice_of is None
        assert facts.entries_q == facts.entries_k is not None
    if decision.plan is ScoringPlan.PACKED_SINGLE_SEGMENTS:
        assert facts.entries_q == facts.entries_k == 1 < facts.cp_size
    if decision.plan.fused:
        assert facts.has_bounds
        assert not facts.explicit_key_positions


def test_a_slice_of_a_ranks_rows_goes_to_the_scorer_that_knows_slices_or_to_none():
    one, many = (pack_sequences(lengths, cp_size=2) for lengths in ([64], [64, 32]))
    for pack, plan in ((one, "packed_single"), (many, "unfused_bounds")):
        rows = pack.rows_per_rank
        assert canonical(facts_of(pack, rows=rows // 2, slice_of=rows)) == plan


@given(
    st.lists(st.integers(0, 24), min_size=1, max_size=6),
    st.sampled_from([2, 4]),
    st.integers(0, 2),
)
@settings(max_examples=60, deadline=None)
def test_segments_of_a_pack_are_those_of_the_harnesss_own_layout(lengths, cp_size, tail):
    pack = pack_sequences(lengths, cp_size=cp_size, tail_padding=tail * cp_size)
    keys = torch.arange(pack.total_k).view(-1, 1, 1)
    q, k = (torch.tensor(x) for x in (pack.cu_seqlens_q_padded, pack.cu_seqlens_k_padded))
    for rank in range(cp_size):
        made = halves(
            keys,
            q,
            k,
            pack.max_seqlen_q,
            cp_size=cp_size,
            cp_rank=rank,
            rows=pack.rows_per_rank,
            device=keys.device,
        )
        due = [s for s in rank_segments(pack, rank) if not s.is_tail]
        q_lengths, k_lengths = made.cu_seqlens_q.diff(), made.cu_seqlens_k.diff()
        kept = q_lengths > 0
        assert q_lengths[kept].tolist() == [s.q_length for s in due]
        assert k_lengths[kept].tolist() == [s.k_length for s in due]
        picked = [key for s in due for key in range(s.key_start, s.key_start + s.k_length)]
        assert made.keys.flatten()[: len(picked)].tolist() == picked
        assert max([*k_lengths.tolist(), 0]) <= made.longest_k
        assert int(owned_rows(made.cu_seqlens_q, pack.rows_per_rank).sum()) == sum(
            s.q_length for s in due
        )


def test_bounds_follow_the_keys_where_these_end_elsewhere():
    pack = pack_sequences([8, 8], cp_size=1, kv_sequences=[4, 12])
    params = packed_seq_params(pack)
    call = {"packed_seq_params": params, "attn_mask_type": "causal"}
    positions = torch.arange(16)
    released = (torch.tensor([0] * 8 + [8] * 8), positions + 1, None)
    layout = overlay_builds.module("dsa_layout")
    starts, ends, _key_positions = key_bounds(released, call, layout)
    assert starts.tolist() == [0] * 8 + [4] * 8
    assert ends.tolist() == [1, 2, 3, 4, 4, 4, 4, 4, *range(5, 13)]
    assert key_bounds(released, call | {"packed_seq_params": None}, layout) is released


def test_an_unfused_plan_is_told_once_for_each_reason(caplog):
    said, logger = set(), logging.getLogger("overlay.test")
    unpacked = facts_of(pack_sequences([64], cp_size=2), packed=False)
    dense = facts_of(pack_sequences([64], cp_size=2), dense_loss=True)
    fused = facts_of(pack_sequences([64], cp_size=2))
    declined = facts_of(pack_sequences([64], cp_size=2), explicit_key_positions=True)
    with caplog.at_level(logging.WARNING):
        told = [
            report_once(resolve(facts), said, logger)
            for facts in (unpacked, unpacked, dense, fused, declined, unpacked)
        ]
    assert [text is not None for text in told] == [True, False, True, False, False, False]
    assert len(caplog.records) == 2


def test_hooks_are_offered_the_facts_that_they_take_and_no_other():
    facts = {"varlen_is_plain_causal": True, "packed_thd_single_sequence": False}

    def exact(*, q):
        return {"q": q}

    def by_name(*, q, packed_thd_single_sequence=None):
        return {"q": q, "single": packed_thd_single_sequence}

    def by_place(packed_thd_single_sequence=None, /, *, q):
        return packed_thd_single_sequence

    assert with_facts(exact, facts) is exact
    assert with_facts(by_name, facts)(q=1) == {"q": 1, "single": False}
    assert with_facts(by_place, facts)(q=1) is None
    assert with_facts(lambda **kwargs: kwargs, facts)(q=1) == {"q": 1} | facts
    given = with_facts(lambda **kwargs: kwargs, facts)(varlen_is_plain_causal=False)
    assert given["varlen_is_plain_causal"] is False
    assert with_facts(min, facts) is min


def test_a_build_with_a_plan_of_its_own_is_refused(monkeypatch):
    monkeypatch.setattr(scoring_plan, "_has_plan_module", lambda: True)
    before = overlay_builds.snapshot()
    with pytest.raises(OverlayRefusedError, match="resolves a scoring plan itself"):
        scoring_plan.install()
    assert overlay_builds.snapshot() == before
