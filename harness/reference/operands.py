"""The scorer's operands of one rank, and the chunks of rows they are scored in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from harness.reference.rows import RowTable
from harness.reference.scores import (
    REFERENCE_DTYPES,
    check_inputs,
    exact_scores,
    key_norms,
    row_weights,
)

MARGIN_UNIT = 2.0**-20
"""Score margin as a part of ``sum_h |w_h| * ||q_h|| * ||k||``.

Number format: products of bf16 are exact in fp32, so a score errs by its fp32 accumulation, in an
order that is the kernel's own. Each of the D + H additions of a score rounds by up to 2^-24 of what
it adds up to; for D = 128 and H = 32 the errors, being of either sign, gather to about
sqrt(160) * 2^-24, a little under 2^-20, of the sum of the magnitudes, which the norms bound. On
standard normal inputs of that size, two orders of accumulation erred by at most 0.02 of this.
"""

_SPREAD_KEYS = 1024
"""Keys, on top of a quarter, by which the limits of a chunk's rows may differ."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkSizes:
    """How many rows are scored at a time: at most ``rows``, and ``score_bytes`` of scores."""

    rows: int = 256
    score_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        """Refuse a size that would make no progress."""
        if self.rows < 1 or self.score_bytes < 1:
            raise ValueError(
                f"chunk sizes must be at least 1, found rows={self.rows}, "
                f"score_bytes={self.score_bytes}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Operands:
    """What one rank's indexer scores: queries, all keys, head weights.

    Attributes:
        q: (R, H, D) local query rows, any floating dtype.
        k: (N, D) all keys of the pack, in packed order.
        w: (R, H) head weights, with every scale already in them.
        dtype: ``fp32`` or ``fp64``, of the reference arithmetic.
        exact_arithmetic: True when every product and sum is exact in fp32 (small integers), so
            that scores may be compared without a margin.
        chunks: Sizes of the chunks of rows.

    Raises:
        ValueError: for shapes that do not belong together, an unknown dtype, or values that are
            not finite (the order of their scores is undefined).
    """

    q: Tensor
    k: Tensor
    w: Tensor
    dtype: str = "fp32"
    exact_arithmetic: bool = False
    chunks: ChunkSizes = field(default_factory=ChunkSizes)

    def __post_init__(self) -> None:
        """Check shapes and values once, so that no chunk has to."""
        check_inputs(self.q, self.k, self.w)
        if self.dtype not in REFERENCE_DTYPES:
            raise ValueError(
                f"reference dtype must be one of {sorted(REFERENCE_DTYPES)}, found {self.dtype!r}"
            )
        for name in ("q", "k", "w"):
            if not torch.isfinite(getattr(self, name)).all():
                raise ValueError(
                    f"{name} holds NaN or infinite values, so the order of its scores is "
                    "undefined; judge the layer that produced it first"
                )

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the reference arithmetic."""
        return REFERENCE_DTYPES[self.dtype]

    @property
    def margin_unit(self) -> float:
        """``MARGIN_UNIT``, or 0.0 where the arithmetic is exact."""
        return 0.0 if self.exact_arithmetic else MARGIN_UNIT

    def check_table(self, table: RowTable) -> None:
        """Raise ValueError unless the table describes these rows and keys."""
        if self.q.shape[0] != table.num_local_rows:
            raise ValueError(
                f"q has {self.q.shape[0]} rows but the rank has {table.num_local_rows}; give q, w "
                "and picks of all local rows, the table says which are judged"
            )
        if self.k.shape[0] != table.num_keys:
            raise ValueError(
                f"k has {self.k.shape[0]} keys but the pack has {table.num_keys}, padding "
                "included; give all gathered keys in packed order"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoredRows:
    """A chunk of rows of one sequence with their scores.

    Attributes:
        index: (r,) int64, indices into the table.
        limits: (r, 1) int64 visible keys.
        scores: (r, n) over the first n keys of the sequence, -inf past each row's limit. Valid
            until the next chunk is asked for.
        weights: (r, 1) the rows' factor of the margin.
        norms: (n,) the keys' factor of the margin.
    """

    index: Tensor
    limits: Tensor
    scores: Tensor
    weights: Tensor
    norms: Tensor


def scored_rows(operands: Operands, table: RowTable, rows: Tensor) -> Iterator[ScoredRows]:
    """Score rows of a table, each against the visible keys of its own sequence.

    Chunks hold rows of one sequence in order of their limits, these lying close together,
    so that a chunk's key slice is hardly longer than its rows need.

    Args:
        operands: Of the rank.
        table: Row descriptions.
        rows: (S,) int64 indices into the table; rows without visible keys are left out.
    """
    device = operands.q.device
    dtype = operands.torch_dtype
    norms = key_norms(operands.k, dtype=dtype)
    buffer = torch.empty(0, dtype=dtype, device=device)
    for index in _chunks(table, rows, operands.chunks, dtype.itemsize):
        limits = table.limits[index].to(device).unsqueeze(1)
        start, width = int(table.starts[index[0]]), int(limits.max())
        if buffer.numel() < index.numel() * width:
            buffer = torch.empty(index.numel() * width, dtype=dtype, device=device)
        scores = buffer[: index.numel() * width].view(index.numel(), width)
        local = table.row[index].to(device)
        q, w = operands.q[local], operands.w[local]
        exact_scores(q, operands.k[start : start + width], w, dtype=dtype, out=scores)
        scores.masked_fill_(torch.arange(width, device=device) >= limits, -torch.inf)
        yield ScoredRows(
            index=index,
            limits=limits,
            scores=scores,
            weights=row_weights(q, w, dtype=dtype).unsqueeze(1),
            norms=norms[start : start + width],
        )


def _chunks(table: RowTable, rows: Tensor, sizes: ChunkSizes, itemsize: int) -> Iterator[Tensor]:
    """Cut rows into chunks of one sequence, in order of sequence and limit."""
    rows = rows[table.limits[rows] > 0]
    rows = rows[torch.argsort(table.limits[rows], stable=True)]
    rows = rows[torch.argsort(table.starts[rows], stable=True)]
    starts, limits = table.starts[rows].tolist(), table.limits[rows].tolist()
    begin = 0
    for end in range(1, len(starts) + 1):
        full = end == len(starts) or starts[end] != starts[begin]
        if not full:
            size = end + 1 - begin
            full = (
                size > sizes.rows
                or size * limits[end] * itemsize > sizes.score_bytes
                or limits[end] > limits[begin] * 5 // 4 + _SPREAD_KEYS
            )
        if full:
            yield rows[begin:end]
            begin = end
