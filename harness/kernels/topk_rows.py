"""Reading a top-k input row by element address, wherever the address leads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from harness.kernels.addresses import Bounds, Operand
from harness.kernels.topk_plan import TopKPlan


@dataclass(frozen=True, kw_only=True, slots=True)
class RowReader:
    """Reads columns of a row as the kernel does: base pointer plus column, no clamp.

    Attributes:
        operand: Where the input lies.
        storage: The whole allocation as a flat tensor.
        bounds: Judge of the addresses.
    """

    operand: Operand
    storage: torch.Tensor
    bounds: Bounds

    @classmethod
    def of(cls, values: torch.Tensor, bounds: Bounds) -> RowReader:
        """Read from a real, contiguous (n_rows, num_cols) tensor."""
        operand = Operand.of("input_values", values)
        flat = torch.empty(0, dtype=values.dtype)
        flat.set_(values.untyped_storage(), 0, (operand.allocation,), (1,))
        return cls(operand=operand, storage=flat, bounds=bounds)

    def row_start(self, row: int) -> int:
        """Element offset of the row."""
        return self.operand.base + row * self.operand.strides[0]

    def start_bytes(self, row: int) -> int:
        """Byte address of the row relative to its allocation, which is aligned."""
        return self.row_start(row) * self.storage.element_size()

    def read_run(self, row: int, count: int) -> torch.Tensor:
        """Columns 0..count-1 of a row; those past the row are whatever lies there.

        Raises:
            AddressFault: The run leaves the allocation.
        """
        start = self.row_start(row)
        self.bounds.touch_run(
            self.operand,
            row=row,
            first_index=0,
            count=count,
            first_offset=start,
            row_span=(start, start + self.operand.shape[1]),
        )
        return self.storage[start : start + count]

    def read(self, row: int, columns: np.ndarray) -> torch.Tensor:
        """Any columns of a row.

        Raises:
            AddressFault: One of them leaves the allocation.
        """
        if columns.size == 0:
            return self.storage[:0]
        start = self.row_start(row)
        low, high = int(columns.min()), int(columns.max())
        width = self.operand.shape[1]
        # Extremes suffice: they are the first to leave the row and the allocation.
        for column in (high, low):
            if not 0 <= column < width:
                self.bounds.touch(
                    self.operand,
                    row=row,
                    index=column,
                    offset=start + column,
                    row_span=(start, start + width),
                )
        return self.storage[torch.from_numpy(columns) + start]


def check_scratch(
    bounds: Bounds, plan: TopKPlan, *, row: int, half: int, first: int, count: int
) -> None:
    """Judge the scratch words that a row's spilled candidates touch.

    Args:
        bounds: Judge.
        plan: Of the call.
        row: Row within its launch.
        half: Which of the row's word planes (0, or 1 for fp32).
        first: First position.
        count: Positions.

    Raises:
        AddressFault: The row starts behind 2^31 words (the start is formed in 32 bits), or the
            positions leave the allocation.
    """
    if count <= 0:
        return
    operand = Operand.contiguous("scratch", (plan.n_rows, plan.words, plan.num_cols))
    start = row * plan.row_words
    bounds.touch_int32(operand, row=row, index=first, offset=start)
    plane = start + half * plan.num_cols
    bounds.touch_run(
        operand,
        row=row,
        first_index=first,
        count=count,
        first_offset=plane + first,
        row_span=(plane, plane + plan.num_cols),
    )
