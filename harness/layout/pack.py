"""One microbatch's pack of sequences: real and padded lengths of queries and keys, before CP.

Two streams, ``query`` and ``key``. Their boundaries may differ (``kv_sequences``), but a sequence
keeps its index in both. Rows behind the last sequence (tail padding) belong to no sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

from harness.layout.errors import LayoutError, LayoutRule, check_cp_size
from harness.layout.zigzag import check_sbhd_length, pad_multiple, padded_length

Stream = Literal["query", "key"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """Lengths in tokens over the whole CP group; checked on construction.

    Attributes:
        q_lengths: Real query length of each sequence; 0 is an empty sequence.
        q_padded: Padded query lengths, multiples of ``2 * cp_size`` when ``cp_size > 1``.
        k_lengths: Real key length of each sequence.
        k_padded: Padded key lengths, under the same rule.
        cp_size: Effective CP size of the microbatch.
        tail_padding: Query rows behind the last sequence, over the whole group. Each rank holds
            ``tail_padding / cp_size`` of them at the end of its local rows.

    Raises:
        LayoutError: The lengths break one of the rules of ``harness.layout.errors``.
    """

    q_lengths: tuple[int, ...]
    q_padded: tuple[int, ...]
    k_lengths: tuple[int, ...]
    k_padded: tuple[int, ...]
    cp_size: int
    tail_padding: int = 0

    def __post_init__(self) -> None:
        check_cp_size(self.cp_size)
        _check_stream("query", self.q_lengths, self.q_padded, self.cp_size)
        _check_stream("key", self.k_lengths, self.k_padded, self.cp_size)
        if len(self.k_lengths) != len(self.q_lengths):
            raise _kv_unmatched("kv_sequences", len(self.k_lengths), len(self.q_lengths))
        _check_tail(self.tail_padding, self.cp_size)

    @property
    def num_sequences(self) -> int:
        """Entries of the pack, empty ones included (``cu_seqlens`` has one element more)."""
        return len(self.q_lengths)

    @property
    def single(self) -> bool:
        """True when the pack has exactly one entry, whatever its length."""
        return len(self.q_lengths) == 1

    @property
    def all_empty(self) -> bool:
        """True when no sequence has a query row, padded or real."""
        return not any(self.q_padded)

    @property
    def cu_seqlens_q(self) -> tuple[int, ...]:
        """Prefix sums of the real query lengths, leading 0."""
        return tuple(accumulate(self.q_lengths, initial=0))

    @property
    def cu_seqlens_q_padded(self) -> tuple[int, ...]:
        """Prefix sums of the padded query lengths, leading 0; the tail is not in it."""
        return tuple(accumulate(self.q_padded, initial=0))

    @property
    def cu_seqlens_k(self) -> tuple[int, ...]:
        """Prefix sums of the real key lengths, leading 0."""
        return tuple(accumulate(self.k_lengths, initial=0))

    @property
    def cu_seqlens_k_padded(self) -> tuple[int, ...]:
        """Prefix sums of the padded key lengths, leading 0; the tail is not in it."""
        return tuple(accumulate(self.k_padded, initial=0))

    @property
    def total_q(self) -> int:
        """Query rows of the group: padded lengths and the tail."""
        return sum(self.q_padded) + self.tail_padding

    @property
    def total_k(self) -> int:
        """Key rows of the group: padded lengths and the key tail."""
        return sum(self.k_padded) + self.key_tail_padding

    @property
    def key_tail_padding(self) -> int:
        """Key rows behind the last sequence, over the whole group.

        Queries and keys come from the same hidden states, so Megatron lays keys out over as many
        local rows as the queries have (``key_local_output_size`` in ``DSAttention.forward``) and
        what ``cu_seqlens_kv`` does not cover becomes tail. With equal boundaries this equals
        ``tail_padding``; keys longer than the query rows leave no tail.
        """
        return max(self.total_q - sum(self.k_padded), 0)

    @property
    def rows_per_rank(self) -> int:
        """Local query rows of every rank, tail included."""
        return self.total_q // self.cp_size

    @property
    def key_rows_per_rank(self) -> int:
        """Local key rows of every rank before the gather, tail included."""
        return self.total_k // self.cp_size

    @property
    def max_seqlen_q(self) -> int:
        """Longest padded query length."""
        return max(self.q_padded)

    @property
    def max_seqlen_k(self) -> int:
        """Longest padded key length."""
        return max(self.k_padded)

    @property
    def equal_boundaries(self) -> bool:
        """True when queries and keys have the same padded boundaries."""
        return self.q_padded == self.k_padded

    @property
    def query_cu_seqlens_cover_output(self) -> bool:
        """True when ``cu_seqlens_q_padded`` covers every query row (no tail)."""
        return self.tail_padding == 0

    @property
    def key_cu_seqlens_cover_output(self) -> bool:
        """True when ``cu_seqlens_k_padded`` covers every key row (no key tail)."""
        return self.key_tail_padding == 0

    @property
    def host_cover_flags(self) -> tuple[bool, bool]:
        """Query and key cover flags as host metadata alone can prove them.

        ``DSAttention.forward`` of megatron-core 0.19.2 sets its two cover flags only for a single
        sequence whose ``max_seqlen`` equals the group's query rows, so that it need not read
        ``cu_seqlens`` from the device. A pack of several sequences never gets them.
        """
        if not self.single or self.cp_size == 1:
            return False, False
        return self.max_seqlen_q == self.total_q, self.max_seqlen_k == self.total_q

    def padded(self, stream: Stream) -> tuple[int, ...]:
        """Return the padded lengths of one stream."""
        return self.q_padded if stream == "query" else self.k_padded

    def tail(self, stream: Stream) -> int:
        """Return the tail rows of one stream, over the whole group."""
        return self.tail_padding if stream == "query" else self.key_tail_padding

    def total(self, stream: Stream) -> int:
        """Return the rows of one stream over the whole group, tail included."""
        return self.total_q if stream == "query" else self.total_k


def pack_sequences(
    sequences: Sequence[int],
    *,
    cp_size: int,
    padded: Literal["auto"] | Sequence[int] = "auto",
    kv_sequences: Sequence[int] | None = None,
    kv_padded: Literal["auto"] | Sequence[int] = "auto",
    tail_padding: int = 0,
) -> Pack:
    """Build a pack from real lengths in tokens.

    >>> pack_sequences([698], cp_size=4).q_padded
    (704,)
    >>> pack_sequences([4, 4], cp_size=2).cu_seqlens_q_padded
    (0, 4, 8)

    Args:
        sequences: Real query length of each sequence; zeros and repeats allowed.
        cp_size: Effective CP size.
        padded: ``auto`` (each length up to a multiple of ``2 * cp_size``; as it is at
            ``cp_size`` 1), or a padded length for each sequence.
        kv_sequences: Real key lengths where they differ from the queries', one for each sequence.
        kv_padded: As ``padded``, for ``kv_sequences``.
        tail_padding: Query rows behind the last sequence, over the whole group.

    Raises:
        LayoutError: With the offending number, what was expected, and what to change.
    """
    q_lengths = tuple(sequences)
    q_padded = _resolve_padded("query", q_lengths, padded, cp_size)
    if kv_sequences is None:
        if kv_padded != "auto":
            raise LayoutError(
                f"kv_padded has {len(kv_padded)} entries but there are no kv_sequences to pad "
                f"({len(q_lengths)} expected); give kv_sequences, or leave kv_padded at auto",
                rule=LayoutRule.KV_UNMATCHED,
            )
        k_lengths, k_padded = q_lengths, q_padded
    else:
        k_lengths = tuple(kv_sequences)
        if len(k_lengths) != len(q_lengths):
            raise _kv_unmatched("kv_sequences", len(k_lengths), len(q_lengths))
        k_padded = _resolve_padded("key", k_lengths, kv_padded, cp_size)
    return Pack(
        q_lengths=q_lengths,
        q_padded=q_padded,
        k_lengths=k_lengths,
        k_padded=k_padded,
        cp_size=cp_size,
        tail_padding=tail_padding,
    )


def sbhd_pack(seq_length: int, *, cp_size: int) -> Pack:
    """Return the layout of one non-packed (``sbhd``) sequence as a pack with one entry.

    Its runs, segments, limits and reorder are those of a single sequence that needs no padding;
    only the scoring plan differs (``expected_plan`` is told the format).

    Raises:
        LayoutError: ``seq_length`` is negative or no multiple of ``2 * cp_size``.
    """
    check_sbhd_length(seq_length, cp_size)
    return pack_sequences((seq_length,), cp_size=cp_size)


_KEYS = {"query": ("sequences", "padded"), "key": ("kv_sequences", "kv_padded")}


def _resolve_padded(
    stream: Stream,
    lengths: tuple[int, ...],
    padded: Literal["auto"] | Sequence[int],
    cp_size: int,
) -> tuple[int, ...]:
    """Pad ``lengths`` if asked to; negative lengths are refused before they are rounded."""
    check_cp_size(cp_size)
    _check_not_negative(stream, _KEYS[stream][0], lengths)
    if padded == "auto":
        return tuple(padded_length(length, cp_size) for length in lengths)
    return tuple(padded)


def _check_stream(
    stream: Stream, lengths: tuple[int, ...], padded: tuple[int, ...], cp_size: int
) -> None:
    """Check real against padded lengths of one stream."""
    lengths_key, padded_key = _KEYS[stream]
    if not lengths:
        raise LayoutError(
            f"{lengths_key} has 0 entries, expected at least 1; "
            "write an empty sequence as a length of 0",
            rule=LayoutRule.NO_SEQUENCES,
        )
    if len(lengths) != len(padded):
        raise LayoutError(
            f"{padded_key} has {len(padded)} entries but {lengths_key} has {len(lengths)}; "
            f"give one padded length for each sequence, or {padded_key}: auto",
            rule=LayoutRule.LISTS_DIFFER,
        )
    _check_not_negative(stream, lengths_key, lengths)
    _check_not_negative(stream, padded_key, padded)
    multiple = pad_multiple(cp_size)
    for index, (real, rows) in enumerate(zip(lengths, padded, strict=True)):
        where = "" if stream == "query" else "key "
        if rows < real:
            raise LayoutError(
                f"sequence {index}: padded {where}length {rows} is shorter than its real length "
                f"{real}; raise {padded_key}[{index}] to {padded_length(real, cp_size)}, "
                f"or use {padded_key}: auto",
                rule=LayoutRule.PADDED_TOO_SHORT,
                sequence=index,
            )
        if rows % multiple:
            raise LayoutError(
                f"sequence {index}: padded {where}length {rows} is not a multiple of "
                f"2 * cp_size = {multiple}; set {padded_key}[{index}] to "
                f"{padded_length(rows, cp_size)}, or use {padded_key}: auto",
                rule=LayoutRule.PADDED_NOT_DIVISIBLE,
                sequence=index,
            )


def _check_not_negative(stream: Stream, key: str, lengths: tuple[int, ...]) -> None:
    for index, length in enumerate(lengths):
        if length < 0:
            raise LayoutError(
                f"sequence {index}: {stream} length {length} is negative, expected 0 or more; "
                f"change {key}[{index}] (0 is an empty sequence)",
                rule=LayoutRule.NEGATIVE_LENGTH,
                sequence=index,
            )


def _check_tail(tail_padding: int, cp_size: int) -> None:
    if tail_padding < 0:
        raise LayoutError(
            f"tail_padding {tail_padding} is negative; expected 0 or more",
            rule=LayoutRule.NEGATIVE_LENGTH,
        )
    if tail_padding % cp_size:
        raise LayoutError(
            f"tail_padding {tail_padding} is not divisible by cp_size = {cp_size}, and every rank "
            f"holds an equal share of its rows; use {-(-tail_padding // cp_size) * cp_size}",
            rule=LayoutRule.TAIL_NOT_DIVISIBLE,
        )


def _kv_unmatched(key: str, found: int, expected: int) -> LayoutError:
    return LayoutError(
        f"{key} has {found} entries but there are {expected} sequences; "
        "give each query sequence its own key length (0 for none)",
        rule=LayoutRule.KV_UNMATCHED,
    )
