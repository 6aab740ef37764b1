"""Rows reached by id: gathers from keys and atomics into gradient accumulators, by address.

An id is a row number of a flat (N, D) tensor. It may lead anywhere: inside its owner's rows, into
another batch's, outside the tensor but inside its allocation, or out of that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from harness.kernels.addresses import Bounds, Operand


@dataclass(frozen=True, kw_only=True, slots=True)
class Touched:
    """Row numbers that some slots of some query rows lead to.

    Attributes:
        rows: int64 (R, K) row numbers, any value.
        mask: bool (R, K), slots that touch memory at all.
        low: int64 (R, 1) or int, first row number a query row may use.
        high: int64 (R, 1) or int, first row number behind those.
        first: Number of the first query row, for the evidence.
    """

    rows: torch.Tensor
    mask: torch.Tensor
    low: torch.Tensor | int
    high: torch.Tensor | int
    first: int = 0


def judge_rows(bounds: Bounds, operand: Operand, touched: Touched) -> None:
    """Judge every touched row; only those outside their range cost anything.

    ``index`` of the evidence is the slot, ``row`` the query row.

    Raises:
        AddressFault: A row leaves the allocation.
    """
    outside = touched.mask & ((touched.rows < touched.low) | (touched.rows >= touched.high))
    if not bool(outside.any()):
        return
    width = operand.strides[0]
    starts = operand.base + touched.rows * width
    ends = starts + operand.shape[1]
    lost = outside & ((starts < 0) | (ends > operand.allocation))
    # One that leaves the allocation ends the call: name it first.
    chosen = torch.nonzero(lost if bool(lost.any()) else outside)[: max(bounds.limit, 1)]
    for row, slot in chosen.tolist():
        start = int(starts[row, slot])
        past = start >= 0 and int(ends[row, slot]) > operand.allocation
        offset = max(start, operand.allocation) if past else start
        bounds.touch(
            operand,
            row=touched.first + row,
            index=slot,
            offset=offset,
            row_span=_span(operand, touched, row),
        )


def _span(operand: Operand, touched: Touched, row: int) -> tuple[int, int]:
    low, high = (
        int(side if isinstance(side, int) else side[row, 0]) for side in (touched.low, touched.high)
    )
    width = operand.strides[0]
    return (operand.base + low * width, operand.base + high * width)


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyRows:
    """Keys that are read by row number.

    Attributes:
        operand: Where the keys lie.
        view: Every whole row of the allocation, before and behind the tensor too.
        shift: Row of ``view`` that holds key 0.
        bounds: Judge.
    """

    operand: Operand
    view: torch.Tensor
    shift: int
    bounds: Bounds

    @classmethod
    def of(cls, name: str, keys: torch.Tensor, bounds: Bounds) -> KeyRows:
        """Read from a real (N, D) tensor with a unit last stride."""
        operand = Operand.of(name, keys)
        width, depth = operand.strides[0], operand.shape[1]
        shift, skew = divmod(operand.base, width) if width else (0, operand.base)
        room = operand.allocation - skew - depth
        count = room // width + 1 if width and room >= 0 else 0
        view = keys.as_strided((count, depth), (width, 1), skew)
        return cls(operand=operand, view=view, shift=shift, bounds=bounds)

    def gather(self, touched: Touched) -> torch.Tensor:
        """Return the keys in fp32 (R, K, D); slots that touch nothing hold zeros.

        Raises:
            AddressFault: A row leaves the allocation.
        """
        judge_rows(self.bounds, self.operand, touched)
        if not self.view.shape[0]:
            return torch.zeros(*touched.rows.shape, self.view.shape[1])
        places = torch.where(touched.mask, touched.rows + self.shift, 0)
        found = self.view[places].float()
        if not bool(touched.mask.all()):
            found.masked_fill_(~touched.mask.unsqueeze(2), 0.0)
        return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Accumulator:
    """fp32 rows that atomics add to; longer than the tensor it will become, as its workspace is.

    Attributes:
        operand: Extents of the gradient, allocation of the workspace.
        sums: (allocated rows + 1, D); the last one takes what is not scattered.
        bounds: Judge.
    """

    operand: Operand
    sums: torch.Tensor
    bounds: Bounds

    @classmethod
    def of(
        cls, name: str, rows: int, depth: int, bounds: Bounds, *, multiple: int = 1
    ) -> Accumulator:
        """Allocate zeros for ``rows`` rows, rounded up to ``multiple``."""
        allocated = -(-rows // multiple) * multiple
        operand = Operand(
            name=name,
            allocation=allocated * depth,
            base=0,
            shape=(rows, depth),
            strides=(depth, 1),
        )
        return cls(operand=operand, sums=torch.zeros(allocated + 1, depth), bounds=bounds)

    def add(self, touched: Touched, values: torch.Tensor) -> None:
        """Add ``values`` (R, K, D) to the touched rows.

        Hardware adds in any order; the model adds slot by slot.

        Raises:
            AddressFault: A row leaves the workspace.
        """
        judge_rows(self.bounds, self.operand, touched)
        dropped = self.sums.shape[0] - 1
        places = torch.where(touched.mask, touched.rows, dropped)
        self.sums.index_add_(0, places.flatten(), values.flatten(0, 1))

    def add_run(self, first_row: int, values: torch.Tensor) -> None:
        """Add ``values`` (n, D) to consecutive rows that are known to be inside."""
        self.sums[first_row : first_row + values.shape[0]] += values

    @property
    def result(self) -> torch.Tensor:
        """The gradient's rows, fp32 (N, D)."""
        return self.sums[: self.operand.shape[0]]
