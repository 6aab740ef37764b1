"""Properties of every layout, against a token-by-token model written independently of segments."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.layout import (
    TAIL,
    Half,
    Pack,
    Stream,
    expand_key_starts,
    expand_limits,
    expand_runs,
    expand_sequences,
    expand_valid,
    gather_runs,
    inverse_permutation,
    iter_row_limits,
    key_runs,
    local_runs,
    megatron_position_runs,
    pack_sequences,
    padding_rows,
    rank_segments,
    row_limits,
    sbhd_pack,
    valid_rows,
    zigzag_runs,
)

STREAMS: tuple[Stream, ...] = ("query", "key")
SETTINGS = settings(max_examples=100, deadline=None)


@st.composite
def packs(draw: st.DrawFn) -> Pack:
    cp_size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    multiple = 1 if cp_size == 1 else 2 * cp_size
    lengths = draw(st.lists(st.integers(0, 40), min_size=1, max_size=6))
    extra = draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    rounded = [-(-length // multiple) * multiple for length in lengths]
    kv = draw(
        st.none() | st.lists(st.integers(0, 40), min_size=len(lengths), max_size=len(lengths))
    )
    return pack_sequences(
        lengths,
        cp_size=cp_size,
        padded=[rows + more * multiple for rows, more in zip(rounded, extra, strict=True)],
        kv_sequences=kv,
        tail_padding=draw(st.integers(0, 3)) * cp_size,
    )


def owned_positions(padded: tuple[int, ...], tail: int, cp_size: int, cp_rank: int) -> list[int]:
    """Token by token: which packed positions a rank holds, in its local order."""
    owned, begin = [], 0
    for length in padded:
        for position in range(length):
            chunk = position * 2 * cp_size // length
            if cp_size == 1 or cp_rank in (chunk, 2 * cp_size - 1 - chunk):
                owned.append(begin + position)
        begin += length
    return owned + [begin + row for row in range(tail) if row * cp_size // tail == cp_rank]


def document_of(pack: Pack) -> list[tuple[int, int]]:
    """(sequence, position in it) of each packed query position, (TAIL, 0) behind the last one."""
    tokens = [
        (sequence, position)
        for sequence, length in enumerate(pack.q_padded)
        for position in range(length)
    ]
    return tokens + [(TAIL, 0)] * pack.tail_padding


@SETTINGS
@given(packs())
def test_local_rows_match_the_token_model(pack: Pack) -> None:
    for rank in range(pack.cp_size):
        rows = list(expand_runs(local_runs(pack, rank)))
        assert rows == owned_positions(pack.q_padded, pack.tail_padding, pack.cp_size, rank)
        keys = list(expand_runs(key_runs(pack, rank)))
        assert keys == owned_positions(pack.k_padded, pack.key_tail_padding, pack.cp_size, rank)


@SETTINGS
@given(packs())
def test_every_packed_position_is_owned_by_exactly_one_rank(pack: Pack) -> None:
    for stream in STREAMS:
        gathered = list(expand_runs(gather_runs(pack, stream=stream)))
        assert sorted(gathered) == list(range(pack.total(stream)))
    assert {len(expand_runs(local_runs(pack, rank))) for rank in range(pack.cp_size)} == {
        pack.rows_per_rank
    }
    assert {len(expand_runs(key_runs(pack, rank))) for rank in range(pack.cp_size)} == {
        pack.key_rows_per_rank
    }


@SETTINGS
@given(packs())
def test_inverse_permutation_maps_gathered_to_packed(pack: Pack) -> None:
    for stream in STREAMS:
        inverse = inverse_permutation(pack, stream=stream)
        assert sorted(inverse) == list(range(pack.total(stream)))
        gathered = expand_runs(gather_runs(pack, stream=stream))
        assert [gathered[index] for index in inverse] == list(range(pack.total(stream)))


@SETTINGS
@given(packs())
def test_limits_are_the_position_in_the_own_document_plus_one(pack: Pack) -> None:
    documents = document_of(pack)
    key_begins = pack.cu_seqlens_k_padded
    for rank in range(pack.cp_size):
        limits = row_limits(pack, rank)
        positions = expand_runs(local_runs(pack, rank))
        rows = list(iter_row_limits(limits))
        assert rows == list(zip(expand_key_starts(limits), expand_limits(limits), strict=True))
        for packed, (start, limit) in zip(positions, rows, strict=True):
            sequence, position = documents[packed]
            if sequence == TAIL:
                assert (start, limit) == (key_begins[-1], 0)
            else:
                assert start == key_begins[sequence]
                assert limit == min(position + 1, pack.k_padded[sequence])


@SETTINGS
@given(packs())
def test_segments_tile_the_local_rows(pack: Pack) -> None:
    for rank in range(pack.cp_size):
        segments = rank_segments(pack, rank)
        assert sum(segment.q_length for segment in segments) == pack.rows_per_rank
        assert all(segment.q_length > 0 for segment in segments)
        assert all(before.row_stop == after.row_start for before, after in pairwise(segments))
        assert [(s.q_start, s.q_length) for s in segments] == list(local_runs(pack, rank))
        assert all(not segment.is_tail for segment in segments[:-1])
        assert len(segments) <= 2 * pack.num_sequences + 1


@SETTINGS
@given(packs())
def test_causal_offset_is_where_the_segment_starts_in_its_document(pack: Pack) -> None:
    documents = document_of(pack)
    for rank in range(pack.cp_size):
        for segment in rank_segments(pack, rank):
            sequence, position = documents[segment.q_start]
            assert (segment.sequence, segment.causal_offset) == (sequence, position)
            if segment.is_tail:
                continue
            chunk = pack.q_padded[sequence] // (2 * pack.cp_size)
            expected = {
                Half.WHOLE: 0,
                Half.FRONT: rank * chunk,
                Half.BACK: pack.q_padded[sequence] - (rank + 1) * chunk,
            }
            assert segment.causal_offset == expected[segment.half]
            assert segment.k_length == segment.limit(segment.q_length - 1)


@SETTINGS
@given(packs())
def test_valid_rows_are_the_real_tokens(pack: Pack) -> None:
    documents = document_of(pack)
    assert sum(valid_rows(pack)) == sum(pack.q_lengths)
    for rank in range(pack.cp_size):
        segments = rank_segments(pack, rank)
        real = [
            sequence != TAIL and position < pack.q_lengths[sequence]
            for sequence, position in (documents[p] for p in expand_runs(local_runs(pack, rank)))
        ]
        assert [bool(flag) for flag in expand_valid(segments)] == real
        assert sum(real) == valid_rows(pack)[rank]
        assert len(real) - sum(real) == padding_rows(pack)[rank]


@SETTINGS
@given(packs())
def test_cp_1_is_the_identity(pack: Pack) -> None:
    whole = pack_sequences(
        pack.q_lengths, cp_size=1, padded=pack.q_padded, tail_padding=pack.tail_padding
    )
    identity = list(range(whole.total_q))
    assert list(expand_runs(local_runs(whole, 0))) == identity
    assert list(expand_runs(key_runs(whole, 0))) == identity
    assert list(inverse_permutation(whole)) == identity
    assert list(expand_runs(megatron_position_runs(whole, 0))) == identity


@SETTINGS
@given(packs(), st.data())
def test_an_empty_sequence_changes_nothing_but_indices(pack: Pack, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, pack.num_sequences))

    def insert(lengths: tuple[int, ...]) -> tuple[int, ...]:
        return (*lengths[:at], 0, *lengths[at:])

    more = Pack(
        q_lengths=insert(pack.q_lengths),
        q_padded=insert(pack.q_padded),
        k_lengths=insert(pack.k_lengths),
        k_padded=insert(pack.k_padded),
        cp_size=pack.cp_size,
        tail_padding=pack.tail_padding,
    )
    assert inverse_permutation(more) == inverse_permutation(pack)
    assert valid_rows(more) == valid_rows(pack)
    for rank in range(pack.cp_size):
        assert local_runs(more, rank) == local_runs(pack, rank)
        assert key_runs(more, rank) == key_runs(pack, rank)
        assert row_limits(more, rank) == row_limits(pack, rank)
        sequences = expand_sequences(rank_segments(pack, rank))
        shifted = [index + 1 if index >= at else index for index in sequences]
        assert list(expand_sequences(rank_segments(more, rank))) == shifted


@SETTINGS
@given(packs())
def test_megatron_numbers_sort_like_packed_positions(pack: Pack) -> None:
    numbers: list[int] = []
    positions: list[int] = []
    for rank in range(pack.cp_size):
        numbers += expand_runs(megatron_position_runs(pack, rank))
        positions += expand_runs(local_runs(pack, rank))
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    assert [positions[index] for index in order] == list(range(pack.total_q))


@SETTINGS
@given(st.sampled_from([1, 2, 3, 4, 8]), st.integers(0, 12))
def test_sbhd_is_the_pack_of_one_unpadded_sequence(cp_size: int, chunks: int) -> None:
    pack = sbhd_pack(2 * cp_size * chunks, cp_size=cp_size)
    assert pack.q_padded == pack.q_lengths
    for rank in range(cp_size):
        assert zigzag_runs(pack.total_q, cp_size=cp_size, cp_rank=rank) == local_runs(pack, rank)
