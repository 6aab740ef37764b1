"""Geometry of a top-k launch by arithmetic alone: buckets, threads, tiles, scratch, launches.

Nothing here allocates, so that 4096 rows of 262,209 columns are planned as cheaply as 4 of 16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.kernels.addresses import INT32_MAX

VECTOR_BYTES = 32
"""Width of a load and alignment of rows, input and scratch."""
MAX_TOP_K = 2048
_OCCUPANCY_ROWS = 148
"""More rows than this build the variant with small shared memory."""
_UINT16_COLUMNS = 65536
_OCCUPANCY_CAPACITY = (
    (262144, 4096),
    (131072, 3072),
    (65536, 2048),
    (32768, 1024),
    (16384, 1024),
    (8192, 512),
    (0, 256),
)
"""(least bucket, shared candidates) of the variant for many rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TopKPlan:
    """What the host decides for one call.

    Attributes:
        n_rows: Rows.
        num_cols: Columns.
        top_k: Picks per row.
        element_bytes: 4 (fp32) or 2 (fp16, bf16).
        bucket: Next power of two of the columns.
        many_rows: Whether the large-occupancy variant is built.
        threads: Threads per row.
        capacity: Candidates that fit shared memory.
        spills: Whether further candidates go to global scratch (else they are dropped).
        words: Scratch words per column: 2 for fp32, 1 for half.
        wide_ids: Candidate ids are 32 bits wide, else 16.
        launches: (first row, rows) of each launch.
        needs_wide_offsets: One aligned step of rows does not fit the 32-bit scratch index.
    """

    n_rows: int
    num_cols: int
    top_k: int
    element_bytes: int
    bucket: int
    many_rows: bool
    threads: int
    capacity: int
    spills: bool
    words: int
    wide_ids: bool
    launches: tuple[tuple[int, int], ...]
    needs_wide_offsets: bool

    @property
    def vector(self) -> int:
        """Elements per load."""
        return VECTOR_BYTES // self.element_bytes

    @property
    def tile(self) -> int:
        """Columns that all threads load at once (W)."""
        return self.vector * self.threads

    @property
    def row_words(self) -> int:
        """Scratch words of one row."""
        return self.words * self.num_cols

    @property
    def scratch_bytes(self) -> int:
        """Bytes of the whole scratch."""
        return 4 * self.n_rows * self.row_words

    @property
    def refuses_odd_top_k(self) -> bool:
        """Whether two-wide stores cannot tile top_k (defect ``d406``)."""
        return self.top_k % 2 == 1 and self.top_k > self.threads

    def overflow_rows(self, row_elements: int) -> range:
        """Rows of the largest launch whose start leaves the 32-bit range.

        The kernels form ``row * row_elements`` in 32 bits and add the position inside the row to
        the resulting pointer, so it is the start of the row that must fit: 4096 x 262209 fp32
        scratch rows overflow, 4096 x 262208 do not.

        Args:
            row_elements: Elements per row: ``row_words`` for scratch, ``num_cols`` for the input,
                ``top_k`` for the outputs.
        """
        rows = max((count for _, count in self.launches), default=0)
        if row_elements == 0:
            return range(0)
        first = -(-(INT32_MAX + 1) // row_elements)
        return range(min(first, rows), rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowPlan:
    """How one row of a given length is loaded.

    Attributes:
        prologue: Elements up to the first aligned address, loaded one by one; not cut to the
            length, which is what defect ``short_rows`` is about.
        aligned: Elements loaded as whole vectors.
        tail: Elements behind them, loaded one by one.
        tiles: Vector loads per thread.
        phantom: Lanes of the last tile behind the aligned part (P).
    """

    prologue: int
    aligned: int
    tail: int
    tiles: int
    phantom: int

    @property
    def phantom_start(self) -> int:
        """Column that the first phantom lane stands for."""
        return self.prologue + self.aligned

    @property
    def phantom_end(self) -> int:
        """One past the last column that a phantom lane stands for."""
        return self.phantom_start + self.phantom


def topk_plan(
    *,
    n_rows: int,
    num_cols: int,
    top_k: int,
    element_bytes: int = 4,
    next_n: int = 1,
    chunked: bool = True,
) -> TopKPlan:
    """Plan a call.

    Args:
        n_rows: Rows.
        num_cols: Columns.
        top_k: Picks per row.
        element_bytes: 4 or 2.
        next_n: Rows per ``seq_lens`` entry; launches are cut at multiples of it.
        chunked: Whether rows are cut into launches that fit the 32-bit scratch index.
    """
    bucket = 1 << max(num_cols - 1, 0).bit_length()
    words = 2 if element_bytes == 4 else 1
    many_rows = n_rows > _OCCUPANCY_ROWS
    wide_ids = bucket > _UINT16_COLUMNS
    if many_rows:
        capacity = next(size for least, size in _OCCUPANCY_CAPACITY if bucket >= least)
    else:
        capacity = min(bucket, (1 if wide_ids else 2) * 32768 // words)
    launches, fits = _launches(n_rows, words * num_cols, element_bytes, next_n, chunked)
    return TopKPlan(
        n_rows=n_rows,
        num_cols=num_cols,
        top_k=top_k,
        element_bytes=element_bytes,
        bucket=bucket,
        many_rows=many_rows,
        threads=512 if many_rows else _threads(bucket, element_bytes),
        capacity=capacity,
        spills=bucket > capacity,
        words=words,
        wide_ids=wide_ids,
        launches=launches,
        needs_wide_offsets=not fits,
    )


def _threads(bucket: int, element_bytes: int) -> int:
    """Threads per row of the few-rows variant. Half: read in 1.32, assumed before."""
    most, some = (8192, 2048) if element_bytes == 4 else (43008, 4096)
    if bucket >= most:
        return 1024
    return 512 if bucket > some else 256


def _launches(
    n_rows: int, row_words: int, element_bytes: int, next_n: int, chunked: bool
) -> tuple[tuple[tuple[int, int], ...], bool]:
    """Cut rows into launches; False when one aligned step of rows is too much for 32 bits."""
    whole = ((0, n_rows),) if n_rows else ()
    if n_rows * row_words <= INT32_MAX:
        return whole, True
    step = math.lcm(next_n, max(1, VECTOR_BYTES // element_bytes))
    most = (INT32_MAX + 1) // row_words
    if most < step:
        return whole, False
    if not chunked:
        return whole, True
    rows = most // step * step
    starts = range(0, n_rows, rows)
    return tuple((start, min(rows, n_rows - start)) for start in starts), True


def row_plan(plan: TopKPlan, *, length: int, start_bytes: int) -> RowPlan:
    """Plan the loads of one row.

    Args:
        plan: Of the call.
        length: Columns to rank.
        start_bytes: Byte address of the row's first element, modulo 32 is enough.
    """
    prologue = -start_bytes % VECTOR_BYTES // plan.element_bytes
    ranked = max(length - prologue, 0)
    aligned = ranked // plan.vector * plan.vector
    tiles = -(-aligned // plan.tile)
    return RowPlan(
        prologue=prologue,
        aligned=aligned,
        tail=ranked - aligned,
        tiles=tiles,
        phantom=tiles * plan.tile - aligned,
    )
