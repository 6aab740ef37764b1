"""Which keys each row may see, by segments: ``[key_start, key_start + limit)`` in packed order."""

from __future__ import annotations

from dataclasses import dataclass

from harness.layout.pack import Pack
from harness.layout.segments import rank_segments


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitRun:
    """Limits of a run of local query rows: row r of it sees ``min(first_limit + r, last_limit)``.

    Attributes:
        row_start: First local row.
        length: Rows.
        key_start: Packed position of the first key of the rows' sequence.
        first_limit: Number of keys the first row sees.
        last_limit: Number of keys the last row sees; below ``first_limit + length - 1`` only where
            the sequence has fewer (padded) keys than queries. Both are 0 in the tail.
    """

    row_start: int
    length: int
    key_start: int
    first_limit: int
    last_limit: int


def row_limits(pack: Pack, cp_rank: int) -> tuple[LimitRun, ...]:
    """Return a rank's limits, one run for each of its segments and in their order.

    The limit of a row is its position in its own sequence plus 1, cut at the padded key length of
    that sequence. Padding rows inside a sequence follow the same rule; tail rows see no key.

    >>> from harness.layout import pack_sequences
    >>> [(r.key_start, r.first_limit) for r in row_limits(pack_sequences([4, 4], cp_size=2), 0)]
    [(0, 1), (0, 4), (4, 1), (4, 4)]

    Raises:
        LayoutError: ``cp_rank`` is not a rank of the pack.
    """
    return tuple(
        LimitRun(
            row_start=segment.row_start,
            length=segment.q_length,
            key_start=segment.key_start,
            first_limit=segment.limit(0),
            last_limit=segment.k_length,
        )
        for segment in rank_segments(pack, cp_rank)
    )
