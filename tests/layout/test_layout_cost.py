"""Long packs stay cheap: the work follows the number of sequences, not of tokens."""

from harness.layout import pack_sequences, rank_segments


def test_segments_do_not_grow_with_tokens() -> None:
    short, long = (pack_sequences([scale, 0, scale], cp_size=32) for scale in (64, 1 << 30))
    for rank in range(32):
        assert len(rank_segments(short, rank)) == len(rank_segments(long, rank)) == 4
