"""Padding, pack properties and the closed set of layout errors."""

import doctest
import importlib
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from harness.layout import (
    LayoutError,
    LayoutRule,
    Pack,
    expected_plan,
    gather_runs,
    key_runs,
    local_runs,
    pack_sequences,
    padded_length,
    padding_rows,
    rank_segments,
    row_limits,
    sbhd_pack,
    valid_rows,
    zigzag_runs,
)


@pytest.mark.parametrize(
    ("length", "cp_size", "padded"),
    [
        (0, 4, 0),
        (1, 2, 4),
        (4, 2, 4),
        (5, 2, 8),
        (698, 4, 704),
        (705, 4, 712),
        (5, 1, 5),
        (1, 32, 64),
    ],
)
def test_padded_length_rounds_up_to_twice_cp_size(length: int, cp_size: int, padded: int) -> None:
    assert padded_length(length, cp_size) == padded


def test_auto_padding_and_prefix_sums() -> None:
    pack = pack_sequences([7, 0, 13], cp_size=4, tail_padding=8)
    assert pack.q_padded == (8, 0, 16)
    assert pack.cu_seqlens_q == (0, 7, 7, 20)
    assert pack.cu_seqlens_q_padded == (0, 8, 8, 24)
    assert (pack.k_lengths, pack.k_padded) == (pack.q_lengths, pack.q_padded)
    assert (pack.num_sequences, pack.single, pack.all_empty) == (3, False, False)
    assert (pack.total_q, pack.rows_per_rank, pack.max_seqlen_q) == (32, 8, 16)
    assert (pack.total_k, pack.key_rows_per_rank, pack.max_seqlen_k) == (32, 8, 16)


def test_different_key_boundaries_keep_their_own_prefix_sums() -> None:
    pack = pack_sequences([8, 3], cp_size=2, kv_sequences=[2, 7])
    assert pack.cu_seqlens_k == (0, 2, 9)
    assert pack.cu_seqlens_k_padded == (0, 4, 12)
    assert (pack.cu_seqlens_q_padded, pack.max_seqlen_k) == ((0, 8, 12), 8)
    assert not pack.equal_boundaries


def test_keys_fill_up_to_the_query_rows_with_a_tail_of_their_own() -> None:
    short = pack_sequences([8, 8], cp_size=2, kv_sequences=[8, 4])
    assert (short.key_tail_padding, short.total_k, short.key_rows_per_rank) == (4, 16, 8)
    assert short.query_cu_seqlens_cover_output
    assert not short.key_cu_seqlens_cover_output
    long = pack_sequences([4], cp_size=2, kv_sequences=[16], tail_padding=4)
    assert (long.total_q, long.key_tail_padding, long.total_k) == (8, 0, 16)
    assert not long.query_cu_seqlens_cover_output
    assert long.key_cu_seqlens_cover_output


@pytest.mark.parametrize(
    ("sequences", "options", "flags"),
    [
        ([16], {}, (True, True)),
        ([13], {}, (True, True)),
        ([8, 8], {}, (False, False)),
        ([16, 0], {}, (False, False)),
        ([16], {"tail_padding": 4}, (False, False)),
        ([16], {"kv_sequences": [8]}, (True, False)),
    ],
)
def test_host_metadata_proves_cover_for_one_sequence_without_tail(
    sequences: list[int], options: dict[str, Any], flags: tuple[bool, bool]
) -> None:
    assert pack_sequences(sequences, cp_size=2, **options).host_cover_flags == flags


def test_cp_1_needs_no_cover_flags() -> None:
    assert pack_sequences([16], cp_size=1).host_cover_flags == (False, False)


def test_698_of_704_at_cp_4_has_its_padding_on_rank_0() -> None:
    pack = pack_sequences([698], cp_size=4)
    assert valid_rows(pack) == (170, 176, 176, 176)
    assert padding_rows(pack) == (6, 0, 0, 0)


def test_padding_longer_than_a_chunk_reaches_the_next_ranks() -> None:
    # chunks of 4: 7 = rank 0, 6 = rank 1, 5 = rank 2, 4 = rank 3, 3 = rank 3, 2 = rank 2, ...
    pack = pack_sequences([10], cp_size=4, padded=[32])
    assert padding_rows(pack) == (4, 4, 6, 8)
    assert valid_rows(pack) == (4, 4, 2, 0)


ERRORS = [
    pytest.param(
        lambda: pack_sequences([4, -3], cp_size=2),
        LayoutRule.NEGATIVE_LENGTH,
        1,
        ["sequence 1", "-3", "sequences[1]"],
        id="negative query length",
    ),
    pytest.param(
        lambda: pack_sequences([4], cp_size=2, kv_sequences=[-1]),
        LayoutRule.NEGATIVE_LENGTH,
        0,
        ["key length -1", "kv_sequences[0]"],
        id="negative key length",
    ),
    pytest.param(
        lambda: pack_sequences([4], cp_size=2, padded=[-4]),
        LayoutRule.NEGATIVE_LENGTH,
        0,
        ["-4", "padded[0]"],
        id="negative padded length",
    ),
    pytest.param(
        lambda: pack_sequences([4], cp_size=2, tail_padding=-2),
        LayoutRule.NEGATIVE_LENGTH,
        None,
        ["tail_padding -2"],
        id="negative tail",
    ),
    pytest.param(
        lambda: pack_sequences([4, 18], cp_size=4, padded=[8, 16]),
        LayoutRule.PADDED_TOO_SHORT,
        1,
        ["sequence 1", "16", "18", "padded[1] to 24"],
        id="padded below real",
    ),
    pytest.param(
        lambda: pack_sequences([4, 18], cp_size=4, padded=[8, 20]),
        LayoutRule.PADDED_NOT_DIVISIBLE,
        1,
        ["sequence 1: padded length 20 is not a multiple of 2 * cp_size = 8", "padded[1] to 24"],
        id="padded no multiple",
    ),
    pytest.param(
        lambda: pack_sequences([8], cp_size=4, kv_sequences=[4], kv_padded=[4]),
        LayoutRule.PADDED_NOT_DIVISIBLE,
        0,
        ["padded key length 4", "= 8", "kv_padded[0] to 8"],
        id="padded keys no multiple",
    ),
    pytest.param(
        lambda: pack_sequences([8], cp_size=4, tail_padding=6),
        LayoutRule.TAIL_NOT_DIVISIBLE,
        None,
        ["tail_padding 6", "cp_size = 4", "use 8"],
        id="tail no multiple",
    ),
    pytest.param(
        lambda: pack_sequences([8, 8], cp_size=2, padded=[8]),
        LayoutRule.LISTS_DIFFER,
        None,
        ["padded has 1", "sequences has 2", "padded: auto"],
        id="padded list too short",
    ),
    pytest.param(
        lambda: pack_sequences([8], cp_size=2, kv_sequences=[8], kv_padded=[8, 8]),
        LayoutRule.LISTS_DIFFER,
        None,
        ["kv_padded has 2", "kv_sequences has 1"],
        id="padded key list too long",
    ),
    pytest.param(
        lambda: pack_sequences([8, 8], cp_size=2, kv_sequences=[8]),
        LayoutRule.KV_UNMATCHED,
        None,
        ["kv_sequences has 1", "2 sequences"],
        id="keys without queries",
    ),
    pytest.param(
        lambda: pack_sequences([8, 8], cp_size=2, kv_padded=[8, 8]),
        LayoutRule.KV_UNMATCHED,
        None,
        ["kv_padded has 2", "kv_sequences"],
        id="padded keys without keys",
    ),
    pytest.param(
        lambda: Pack(q_lengths=(4,), q_padded=(4,), k_lengths=(), k_padded=(), cp_size=1),
        LayoutRule.NO_SEQUENCES,
        None,
        ["kv_sequences has 0", "length of 0"],
        id="no entry",
    ),
    pytest.param(
        lambda: Pack(q_lengths=(4,), q_padded=(4,), k_lengths=(4, 4), k_padded=(4, 4), cp_size=1),
        LayoutRule.KV_UNMATCHED,
        None,
        ["2 entries", "1 sequences"],
        id="pack with unmatched keys",
    ),
    pytest.param(
        lambda: pack_sequences([], cp_size=1),
        LayoutRule.NO_SEQUENCES,
        None,
        ["0 entries", "at least 1"],
        id="empty list",
    ),
    pytest.param(
        lambda: pack_sequences([4], cp_size=0),
        LayoutRule.CP_SIZE_TOO_SMALL,
        None,
        ["cp_size 0", "use 1"],
        id="cp_size 0",
    ),
    pytest.param(
        lambda: sbhd_pack(10, cp_size=4),
        LayoutRule.PADDED_NOT_DIVISIBLE,
        0,
        ["seq_length 10", "2 * cp_size = 8", "use 16"],
        id="sbhd no multiple",
    ),
    pytest.param(
        lambda: sbhd_pack(-8, cp_size=4),
        LayoutRule.NEGATIVE_LENGTH,
        0,
        ["seq_length -8"],
        id="sbhd negative",
    ),
    pytest.param(
        lambda: expected_plan(qkv_format="thd", cp_size=2),
        LayoutRule.PACK_MISSING,
        None,
        ["needs a pack"],
        id="thd without a pack",
    ),
    pytest.param(
        lambda: expected_plan(qkv_format="thd", cp_size=4, pack=pack_sequences([4], cp_size=2)),
        LayoutRule.CP_SIZE_MISMATCH,
        None,
        ["cp_size 4", "cp_size 2"],
        id="pack of another cp_size",
    ),
]


@pytest.mark.parametrize(("build", "rule", "sequence", "texts"), ERRORS)
def test_layout_errors_name_the_rule_and_the_numbers(
    build: Callable[[], object], rule: LayoutRule, sequence: int | None, texts: list[str]
) -> None:
    with pytest.raises(LayoutError) as caught:
        build()
    assert caught.value.rule is rule
    assert caught.value.sequence == sequence
    for text in texts:
        assert text in str(caught.value)


@pytest.mark.parametrize("function", [rank_segments, local_runs, key_runs, row_limits])
@pytest.mark.parametrize("cp_rank", [-1, 2, 7])
def test_rank_out_of_range(function: Callable[[Pack, int], object], cp_rank: int) -> None:
    pack = pack_sequences([4], cp_size=2)
    with pytest.raises(LayoutError, match=rf"cp_rank {cp_rank} is not in \[0, 2\)") as caught:
        function(pack, cp_rank)
    assert caught.value.rule is LayoutRule.CP_RANK_OUT_OF_RANGE


def test_rank_out_of_range_without_packing() -> None:
    with pytest.raises(LayoutError, match="cp_rank 4"):
        zigzag_runs(16, cp_size=4, cp_rank=4)


def test_every_rule_of_the_documented_set_is_reached_above() -> None:
    reached = {parameters.values[1] for parameters in ERRORS}
    assert reached | {LayoutRule.CP_RANK_OUT_OF_RANGE} == set(LayoutRule)


def test_layout_error_survives_pickling() -> None:
    error = LayoutError("text", rule=LayoutRule.LISTS_DIFFER, sequence=3)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.rule, copy.sequence) == ("text", LayoutRule.LISTS_DIFFER, 3)


def test_odd_lengths_are_fine_without_context_parallelism() -> None:
    pack = pack_sequences([5, 3], cp_size=1, tail_padding=1)
    assert pack.q_padded == (5, 3)
    assert local_runs(pack, 0) == gather_runs(pack) == ((0, 5), (5, 3), (8, 1))


@pytest.mark.parametrize("module", ["expand", "limits", "pack", "runs", "segments", "zigzag"])
def test_worked_examples_in_the_docstrings(module: str) -> None:
    result = doctest.testmod(importlib.import_module(f"harness.layout.{module}"))
    assert result.attempted > 0
    assert result.failed == 0
