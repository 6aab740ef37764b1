"""Long packs stay cheap: the work follows the number of sequences, not of tokens."""

import time
from collections.abc import Callable

import pytest

from harness.layout import (
    expected_plan,
    inverse_permutation,
    pack_sequences,
    rank_segments,
    row_limits,
    valid_rows,
)


def best_ms(function: Callable[[], object], repeats: int = 20) -> float:
    """Shortest of several runs, so that a busy machine does not decide the outcome."""
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return 1e3 * min(times)


@pytest.mark.parametrize("lengths", [[131072], [131008, 64], [65536, 65536], [4096] * 32])
def test_segments_of_131072_tokens_take_less_than_a_millisecond(lengths: list[int]) -> None:
    pack = pack_sequences(lengths, cp_size=32)
    assert best_ms(lambda: rank_segments(pack, 31)) < 1
    assert best_ms(lambda: row_limits(pack, 15)) < 1
    assert best_ms(lambda: valid_rows(pack)) < 1
    assert best_ms(lambda: expected_plan(qkv_format="thd", cp_size=32, pack=pack)) < 1


def test_segments_do_not_grow_with_tokens() -> None:
    short, long = (pack_sequences([scale, 0, scale], cp_size=32) for scale in (64, 1 << 30))
    for rank in range(32):
        assert len(rank_segments(short, rank)) == len(rank_segments(long, rank)) == 4


def test_inverse_of_131072_tokens_is_written_by_runs() -> None:
    pack = pack_sequences([65536, 65536], cp_size=32)
    assert best_ms(lambda: inverse_permutation(pack), repeats=5) < 100
