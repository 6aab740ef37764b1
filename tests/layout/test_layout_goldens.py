"""Hand-written layouts: every number below was worked out on paper, none by the code under test."""

from dataclasses import dataclass

import pytest

from harness.layout import (
    TAIL,
    Half,
    Pack,
    expand_key_starts,
    expand_limits,
    expand_runs,
    expand_sequences,
    expand_valid,
    gather_runs,
    inverse_permutation,
    key_runs,
    local_runs,
    megatron_position_runs,
    pack_sequences,
    rank_segments,
    row_limits,
    sbhd_pack,
    valid_rows,
    zigzag_runs,
)


@dataclass(frozen=True, kw_only=True)
class Golden:
    """Expected rows of one rank, in local order."""

    positions: tuple[int, ...]
    starts: tuple[int, ...]
    limits: tuple[int, ...]
    valid: tuple[int, ...]
    sequences: tuple[int, ...]
    keys: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    pack: Pack
    ranks: tuple[Golden, ...]
    inverse: tuple[int, ...]


CASES = {
    "two sequences, cp 1": Case(
        pack=pack_sequences([4, 3], cp_size=1),
        ranks=(
            Golden(
                positions=(0, 1, 2, 3, 4, 5, 6),
                starts=(0, 0, 0, 0, 4, 4, 4),
                limits=(1, 2, 3, 4, 1, 2, 3),
                valid=(1, 1, 1, 1, 1, 1, 1),
                sequences=(0, 0, 0, 0, 1, 1, 1),
                keys=(0, 1, 2, 3, 4, 5, 6),
            ),
        ),
        inverse=(0, 1, 2, 3, 4, 5, 6),
    ),
    "padding, empty middle and tail, cp 1": Case(
        pack=pack_sequences([1, 0, 2], cp_size=1, padded=[2, 0, 3], tail_padding=2),
        ranks=(
            Golden(
                positions=(0, 1, 2, 3, 4, 5, 6),
                starts=(0, 0, 2, 2, 2, 5, 5),
                limits=(1, 2, 1, 2, 3, 0, 0),
                valid=(1, 0, 1, 1, 0, 0, 0),
                sequences=(0, 0, 2, 2, 2, TAIL, TAIL),
                keys=(0, 1, 2, 3, 4, 5, 6),
            ),
        ),
        inverse=(0, 1, 2, 3, 4, 5, 6),
    ),
    "cu_seqlens 0 4 8, cp 2": Case(
        pack=pack_sequences([4, 4], cp_size=2),
        ranks=(
            Golden(
                positions=(0, 3, 4, 7),
                starts=(0, 0, 4, 4),
                limits=(1, 4, 1, 4),
                valid=(1, 1, 1, 1),
                sequences=(0, 0, 1, 1),
                keys=(0, 3, 4, 7),
            ),
            Golden(
                positions=(1, 2, 5, 6),
                starts=(0, 0, 4, 4),
                limits=(2, 3, 2, 3),
                valid=(1, 1, 1, 1),
                sequences=(0, 0, 1, 1),
                keys=(1, 2, 5, 6),
            ),
        ),
        inverse=(0, 4, 5, 1, 2, 6, 7, 3),
    ),
    "empty front and end, real 3 of 4, cp 2": Case(
        pack=pack_sequences([0, 3, 0], cp_size=2),
        ranks=(
            Golden(
                positions=(0, 3),
                starts=(0, 0),
                limits=(1, 4),
                valid=(1, 0),
                sequences=(1, 1),
                keys=(0, 3),
            ),
            Golden(
                positions=(1, 2),
                starts=(0, 0),
                limits=(2, 3),
                valid=(1, 1),
                sequences=(1, 1),
                keys=(1, 2),
            ),
        ),
        inverse=(0, 2, 3, 1),
    ),
    "tail of 4 behind two sequences, cp 2": Case(
        pack=pack_sequences([4, 4], cp_size=2, tail_padding=4),
        ranks=(
            Golden(
                positions=(0, 3, 4, 7, 8, 9),
                starts=(0, 0, 4, 4, 8, 8),
                limits=(1, 4, 1, 4, 0, 0),
                valid=(1, 1, 1, 1, 0, 0),
                sequences=(0, 0, 1, 1, TAIL, TAIL),
                keys=(0, 3, 4, 7, 8, 9),
            ),
            Golden(
                positions=(1, 2, 5, 6, 10, 11),
                starts=(0, 0, 4, 4, 8, 8),
                limits=(2, 3, 2, 3, 0, 0),
                valid=(1, 1, 1, 1, 0, 0),
                sequences=(0, 0, 1, 1, TAIL, TAIL),
                keys=(1, 2, 5, 6, 10, 11),
            ),
        ),
        inverse=(0, 6, 7, 1, 2, 8, 9, 3, 4, 5, 10, 11),
    ),
    "all empty with a tail, cp 2": Case(
        pack=pack_sequences([0, 0], cp_size=2, tail_padding=4),
        ranks=(
            Golden(
                positions=(0, 1),
                starts=(0, 0),
                limits=(0, 0),
                valid=(0, 0),
                sequences=(TAIL, TAIL),
                keys=(0, 1),
            ),
            Golden(
                positions=(2, 3),
                starts=(0, 0),
                limits=(0, 0),
                valid=(0, 0),
                sequences=(TAIL, TAIL),
                keys=(2, 3),
            ),
        ),
        inverse=(0, 1, 2, 3),
    ),
    "different query and key boundaries, cp 2": Case(
        pack=pack_sequences([8, 4], cp_size=2, kv_sequences=[4, 8]),
        ranks=(
            Golden(
                positions=(0, 1, 6, 7, 8, 11),
                starts=(0, 0, 0, 0, 4, 4),
                limits=(1, 2, 4, 4, 1, 4),
                valid=(1, 1, 1, 1, 1, 1),
                sequences=(0, 0, 0, 0, 1, 1),
                keys=(0, 3, 4, 5, 10, 11),
            ),
            Golden(
                positions=(2, 3, 4, 5, 9, 10),
                starts=(0, 0, 0, 0, 4, 4),
                limits=(3, 4, 4, 4, 2, 3),
                valid=(1, 1, 1, 1, 1, 1),
                sequences=(0, 0, 0, 0, 1, 1),
                keys=(1, 2, 6, 7, 8, 9),
            ),
        ),
        inverse=(0, 6, 7, 1, 2, 3, 8, 9, 10, 11, 4, 5),
    ),
    "keys shorter than queries and none at all, cp 2": Case(
        pack=pack_sequences([8, 4], cp_size=2, kv_sequences=[4, 0]),
        ranks=(
            Golden(
                positions=(0, 1, 6, 7, 8, 11),
                starts=(0, 0, 0, 0, 4, 4),
                limits=(1, 2, 4, 4, 0, 0),
                valid=(1, 1, 1, 1, 1, 1),
                sequences=(0, 0, 0, 0, 1, 1),
                keys=(0, 3, 4, 5, 6, 7),
            ),
            Golden(
                positions=(2, 3, 4, 5, 9, 10),
                starts=(0, 0, 0, 0, 4, 4),
                limits=(3, 4, 4, 4, 0, 0),
                valid=(1, 1, 1, 1, 1, 1),
                sequences=(0, 0, 0, 0, 1, 1),
                keys=(1, 2, 8, 9, 10, 11),
            ),
        ),
        inverse=(0, 6, 7, 1, 2, 3, 4, 5, 8, 9, 10, 11),
    ),
    "real 7, 0, 13 with an empty middle, cp 4": Case(
        pack=pack_sequences([7, 0, 13], cp_size=4),
        ranks=(
            Golden(
                positions=(0, 7, 8, 9, 22, 23),
                starts=(0, 0, 8, 8, 8, 8),
                limits=(1, 8, 1, 2, 15, 16),
                valid=(1, 0, 1, 1, 0, 0),
                sequences=(0, 0, 2, 2, 2, 2),
                keys=(0, 7, 8, 9, 22, 23),
            ),
            Golden(
                positions=(1, 6, 10, 11, 20, 21),
                starts=(0, 0, 8, 8, 8, 8),
                limits=(2, 7, 3, 4, 13, 14),
                valid=(1, 1, 1, 1, 1, 0),
                sequences=(0, 0, 2, 2, 2, 2),
                keys=(1, 6, 10, 11, 20, 21),
            ),
            Golden(
                positions=(2, 5, 12, 13, 18, 19),
                starts=(0, 0, 8, 8, 8, 8),
                limits=(3, 6, 5, 6, 11, 12),
                valid=(1, 1, 1, 1, 1, 1),
                sequences=(0, 0, 2, 2, 2, 2),
                keys=(2, 5, 12, 13, 18, 19),
            ),
            Golden(
                positions=(3, 4, 14, 15, 16, 17),
                starts=(0, 0, 8, 8, 8, 8),
                limits=(4, 5, 7, 8, 9, 10),
                valid=(1, 1, 1, 1, 1, 1),
                sequences=(0, 0, 2, 2, 2, 2),
                keys=(3, 4, 14, 15, 16, 17),
            ),
        ),
        inverse=(
            *(0, 6, 12, 18, 19, 13, 7, 1),
            *(2, 3, 8, 9, 14, 15, 20, 21, 22, 23, 16, 17, 10, 11, 4, 5),
        ),
    ),
}

RANKS = [
    pytest.param(case, cp_rank, id=f"{name}, rank {cp_rank}")
    for name, case in CASES.items()
    for cp_rank in range(case.pack.cp_size)
]


@pytest.mark.parametrize(("case", "cp_rank"), RANKS)
def test_rows_of_each_rank(case: Case, cp_rank: int) -> None:
    pack, golden = case.pack, case.ranks[cp_rank]
    segments, limits = rank_segments(pack, cp_rank), row_limits(pack, cp_rank)
    assert tuple(expand_runs(local_runs(pack, cp_rank))) == golden.positions
    assert tuple(expand_key_starts(limits)) == golden.starts
    assert tuple(expand_limits(limits)) == golden.limits
    assert tuple(expand_valid(segments)) == golden.valid
    assert tuple(expand_sequences(segments)) == golden.sequences
    assert tuple(expand_runs(key_runs(pack, cp_rank))) == golden.keys
    assert valid_rows(pack)[cp_rank] == sum(golden.valid)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_inverse_of_the_gathered_keys(case: Case) -> None:
    assert tuple(inverse_permutation(case.pack)) == case.inverse
    gathered = tuple(key for golden in case.ranks for key in golden.keys)
    assert tuple(expand_runs(gather_runs(case.pack))) == gathered


def test_inverse_of_the_gathered_queries_follows_the_query_boundaries() -> None:
    pack = pack_sequences([8, 4], cp_size=2, kv_sequences=[4, 8])
    expected = (0, 1, 6, 7, 8, 9, 2, 3, 4, 10, 11, 5)
    assert tuple(inverse_permutation(pack, stream="query")) == expected


def test_megatron_numbers_the_tail_by_local_rows() -> None:
    pack = pack_sequences([4, 4], cp_size=2, tail_padding=4)
    assert megatron_position_runs(pack, 0) == ((0, 1), (3, 1), (4, 1), (7, 1), (8, 2))
    assert megatron_position_runs(pack, 1) == ((1, 1), (2, 1), (5, 1), (6, 1), (14, 2))
    keys = pack_sequences([8], cp_size=2, kv_sequences=[4])
    assert megatron_position_runs(keys, 1, stream="key") == ((1, 1), (2, 1), (8, 2))


def test_segments_of_a_padded_sequence_at_cp_4() -> None:
    pack = pack_sequences([7, 0, 13], cp_size=4)
    front, back = rank_segments(pack, 1)[2:]
    assert (front.sequence, front.half, front.row_start, front.q_length) == (2, Half.FRONT, 2, 2)
    assert (front.q_start, front.key_start, front.k_length) == (10, 8, 4)
    assert (front.causal_offset, front.valid_rows) == (2, 2)
    assert (back.sequence, back.half, back.row_start, back.q_length) == (2, Half.BACK, 4, 2)
    assert (back.q_start, back.key_start, back.k_length) == (20, 8, 14)
    assert (back.causal_offset, back.valid_rows, back.padding_rows) == (12, 1, 1)
    assert [back.limit(row) for row in range(back.q_length)] == [13, 14]


def test_segments_without_context_parallelism_are_whole_sequences() -> None:
    first, second = rank_segments(pack_sequences([4, 0, 3], cp_size=1), 0)
    assert (first.half, first.q_length, first.k_length, first.causal_offset) == (
        Half.WHOLE,
        4,
        4,
        0,
    )
    assert (second.sequence, second.q_start, second.key_start, second.k_length) == (2, 4, 4, 3)


def test_tail_segment_stands_last_and_sees_nothing() -> None:
    tail = rank_segments(pack_sequences([4, 4], cp_size=2, tail_padding=4), 1)[-1]
    assert tail.is_tail
    assert (tail.row_start, tail.row_stop, tail.q_start) == (4, 6, 10)
    assert (tail.k_length, tail.valid_rows, tail.padding_rows) == (0, 0, 2)


@pytest.mark.parametrize(
    ("cp_rank", "runs"),
    [
        (0, ((0, 2), (14, 2))),
        (1, ((2, 2), (12, 2))),
        (2, ((4, 2), (10, 2))),
        (3, ((6, 2), (8, 2))),
    ],
)
def test_sbhd_sequence_at_cp_4(cp_rank: int, runs: tuple[tuple[int, int], ...]) -> None:
    assert zigzag_runs(16, cp_size=4, cp_rank=cp_rank) == runs
    assert local_runs(sbhd_pack(16, cp_size=4), cp_rank) == runs


def test_sbhd_sequence_without_context_parallelism() -> None:
    assert zigzag_runs(7, cp_size=1, cp_rank=0) == ((0, 7),)
    assert zigzag_runs(0, cp_size=1, cp_rank=0) == ()
