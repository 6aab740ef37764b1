"""Row tables against the layout's own expanders, and samples that hold what they must."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.layout import (
    expand_key_starts,
    expand_limits,
    expand_sequences,
    expand_valid,
    pack_sequences,
    rank_segments,
    row_limits,
)
from harness.reference.rows import HALVES, rows_of_rank
from harness.reference.sampling import edge_rows, sample_rows


@given(
    sequences=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    cp_size=st.integers(1, 4),
    tail=st.integers(0, 2),
    kv=st.booleans(),
    data=st.data(),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_table_equals_the_expanded_layout(sequences, cp_size, tail, kv, data):
    kv_sequences = [length // 2 for length in sequences] if kv else None
    pack = pack_sequences(
        sequences, cp_size=cp_size, kv_sequences=kv_sequences, tail_padding=tail * cp_size
    )
    cp_rank = data.draw(st.integers(0, cp_size - 1))
    table = rows_of_rank(pack, cp_rank)
    limits, segments = row_limits(pack, cp_rank), rank_segments(pack, cp_rank)
    assert table.row.tolist() == list(range(pack.rows_per_rank))
    assert table.limits.tolist() == list(expand_limits(limits))
    assert table.starts.tolist() == list(expand_key_starts(limits))
    assert table.sequence.tolist() == list(expand_sequences(segments))
    assert table.valid.tolist() == [bool(flag) for flag in expand_valid(segments)]
    halves = [segment.half for segment in segments for _ in range(segment.q_length)]
    assert [HALVES[code] for code in table.half.tolist()] == halves
    assert (table.limits <= table.key_lengths).all()
    assert (table.starts + table.key_lengths <= pack.total_k).all()
    if not kv:
        seen = table.limits - 1
        assert torch.equal(table.position[table.sequence >= 0], seen[table.sequence >= 0])


def test_tail_rows_own_the_keys_behind_the_last_sequence():
    table = rows_of_rank(pack_sequences([8, 4], cp_size=2, tail_padding=4), 1)
    tail = table.take(table.sequence < 0)
    assert tail.row.tolist() == [6, 7]
    assert tail.starts.tolist() == [12, 12]
    assert tail.key_lengths.tolist() == [4, 4]
    assert tail.limits.tolist() == [0, 0]
    assert not tail.valid.any()


def test_take_keeps_the_size_of_the_rank():
    table = rows_of_rank(pack_sequences([16], cp_size=2), 0)
    some = table.take(torch.tensor([1, 5]))
    assert len(some) == 2
    assert some.is_sample
    assert not table.is_sample
    assert (some.num_local_rows, some.num_keys) == (8, 16)


LONG = pack_sequences([1024, 100, 0, 300], cp_size=4, tail_padding=8)


@pytest.mark.parametrize("cp_rank", [0, 3])
@pytest.mark.parametrize("rows", [1, 60, 120])
def test_sample_holds_every_edge(cp_rank, rows):
    table, topk = rows_of_rank(LONG, cp_rank), 64
    sample = sample_rows(table, rows, seed=1, topk=topk)
    held = set(sample.row.tolist())
    for segment in rank_segments(LONG, cp_rank):
        wanted = {0, segment.q_length - 1, segment.valid_rows - 1, segment.valid_rows}
        wanted |= {r for r in range(segment.q_length) if segment.limit(r) in (topk, topk + 1)}
        wanted |= {topk - 2, topk - 1, topk}
        rows_of_segment = range(segment.q_length)
        assert {segment.row_start + r for r in wanted if r in rows_of_segment} <= held
    edges = int(edge_rows(table, topk=topk).sum())
    assert len(sample) == max(rows, edges)
    assert sample.row.tolist() == sorted(held)
    assert sample.is_sample


def test_sample_is_the_same_for_the_same_seed_only():
    table = rows_of_rank(LONG, 1)
    first = sample_rows(table, 120, seed=3, topk=64)
    assert torch.equal(first.row, sample_rows(table, 120, seed=3, topk=64).row)
    assert not torch.equal(first.row, sample_rows(table, 120, seed=4, topk=64).row)


def test_sample_reaches_all_of_a_segment():
    table = rows_of_rank(pack_sequences([4096], cp_size=1), 0)
    rows = sample_rows(table, 128, seed=0, topk=16).row
    assert int((rows[1:] - rows[:-1]).max()) < 2 * 4096 // 100


def test_all_rows_or_more_than_all_are_the_table():
    table = rows_of_rank(LONG, 0)
    assert sample_rows(table, "all", seed=0, topk=4) is table
    assert sample_rows(table, len(table), seed=0, topk=4) is table
    with pytest.raises(ValueError, match="`all` or at least 1, found 0"):
        sample_rows(table, 0, seed=0, topk=4)
