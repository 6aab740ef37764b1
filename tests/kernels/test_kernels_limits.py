import pytest
import torch

from harness.kernels.limits import Segment, alignment_offset, leaked_limits, row_limit, row_limits
from harness.kernels.releases import MaskAlignment


def segment(q_count, k_count, offset):
    return Segment(index=0, q_start=0, q_count=q_count, k_start=0, k_count=k_count, offset=offset)


def limits_of(alignment, q_count, k_count, ratio, given=None):
    offset = alignment_offset(alignment, q_count=q_count, k_count=k_count, ratio=ratio, given=given)
    return row_limits(segment(q_count, k_count, offset), ratio).tolist()


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 8])
@pytest.mark.parametrize(("q_count", "k_count"), [(5, 5), (3, 9), (12, 4), (1, 7), (16, 4), (0, 4)])
def test_bottom_right_is_the_end_of_the_square_mask(ratio, q_count, k_count):
    # The square problem of k_count * ratio tokens, of which the last q_count rows are asked for.
    square = [min((token + 1) // ratio, k_count) for token in range(k_count * ratio)]
    padded = [0] * q_count + square
    expected = padded[len(padded) - q_count :] if q_count else []
    assert limits_of(MaskAlignment.BOTTOM_RIGHT, q_count, k_count, ratio) == expected


@pytest.mark.parametrize("ratio", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("given", [None, 0, 1, 6, 100, -3, -100])
def test_top_left_counts_from_the_offset(ratio, given):
    start = given or 0
    expected = [
        min(sum(1 for token in range(start + row + 1) if (token + 1) % ratio == 0), 9)
        for row in range(12)
    ]
    assert limits_of(MaskAlignment.TOP_LEFT, 12, 9, ratio, given) == expected


def test_alignments_agree_on_a_square_and_differ_off_it():
    both = [limits_of(alignment, 8, 8, 1) for alignment in MaskAlignment]
    assert both[0] == both[1]
    assert limits_of(MaskAlignment.BOTTOM_RIGHT, 4, 8, 1) == [5, 6, 7, 8]
    assert limits_of(MaskAlignment.TOP_LEFT, 4, 8, 1) == [1, 2, 3, 4]
    assert limits_of(MaskAlignment.TOP_LEFT, 4, 8, 1, given=4) == [5, 6, 7, 8]


def test_row_limit_agrees_with_row_limits():
    part = segment(9, 5, 3)
    assert [row_limit(part, row, 2) for row in range(9)] == row_limits(part, 2).tolist()


def leak_by_brute_force(offset, rows, keys, ratio):
    """Cells that a tile of four rows stores: all of its blocks, the last one masked per cell."""
    limits = [min(max((offset + row + 1) // ratio, 0), keys) for row in range(rows)]
    stored = []
    for row in range(rows):
        tile = limits[row // 4 * 4 : row // 4 * 4 + 4]
        blocks = -(-max(tile) // 64)
        stored.append(
            max(
                [column + 1 for column in range(blocks * 64) if column < (blocks - 1) * 64]
                + [limits[row]]
            )
        )
    return limits, stored


@pytest.mark.parametrize("ratio", [1, 2, 4])
def test_leaked_limits_and_the_offsets_that_leak(ratio):
    leaking, widest = set(), 0
    for offset in range(130):
        limits, stored = leak_by_brute_force(offset, 256, 1000, ratio)
        assert leaked_limits(torch.tensor(limits), 4).tolist() == stored
        extra = max(late - limit for late, limit in zip(stored, limits, strict=True))
        widest = max(widest, extra)
        if extra:
            leaking.add(offset % 4)
    expected = {1: ({1, 2}, 2), 2: ({2}, 1), 4: (set(), 0)}
    assert (leaking, widest) == expected[ratio]


def test_no_rows_leak_nothing():
    assert leaked_limits(torch.zeros(0, dtype=torch.int64), 4).numel() == 0
