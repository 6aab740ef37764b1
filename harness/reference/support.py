"""Which keys each row attends to, and products of rows with exactly those keys, by blocks.

Two kinds: ``Selected`` (ids per row, the sparse case) and ``Visible`` (a range per row, the dense
causal case). Attention and indexer loss are written once, over blocks of either kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

_CHECK_ROWS = 4096
"""Rows whose ids are sorted at a time to find repeats."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Consecutive rows and the n keys that they, or some of them, attend to.

    Attributes:
        rows: Of the support.
        mask: (r, n) bool, True where the row attends to the key.
        ids: (r, n) int64 keys of each row, 0 where masked; None where all rows share ``span``.
        span: The n shared keys.
    """

    rows: slice
    mask: Tensor
    ids: Tensor | None = None
    span: slice | None = None

    def gather(self, keys: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the block's rows of ``keys`` (N, D): (r, n, D), or (n, D) where shared."""
        return keys[self.span if self.ids is None else self.ids].to(dtype)

    @staticmethod
    def dot(rows: Tensor, gathered: Tensor) -> Tensor:
        """Return the products of (r, h, D) rows with gathered keys, (r, h, n)."""
        if gathered.dim() == 2:
            return rows @ gathered.t()
        return torch.bmm(rows, gathered.transpose(1, 2))

    @staticmethod
    def mix(weights: Tensor, gathered: Tensor) -> Tensor:
        """Return the sums over keys of (r, h, n) weights times gathered keys, (r, h, D)."""
        if gathered.dim() == 2:
            return weights @ gathered
        return torch.bmm(weights, gathered)

    def parts(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Return ``sum_h weights[r, h, n] * rows[r, h]`` for each gathered key.

        Args:
            weights: (r, h, n), 0 where masked.
            rows: (r, h, D).

        Returns:
            (r, n, D), or (n, D) summed over rows where the keys are shared.
        """
        if self.ids is None:
            return weights.flatten(0, 1).t() @ rows.flatten(0, 1)
        return torch.bmm(weights.transpose(1, 2), rows)

    def add_to(self, keys: Tensor, parts: Tensor) -> None:
        """Add ``parts`` to ``keys`` (N, D), in place, at the key of each."""
        if self.ids is None:
            keys[self.span] += parts
        else:
            keys.index_add_(0, self.ids.flatten(), parts.flatten(0, 1))


class Support(Protocol):
    """What ``Selected`` and ``Visible`` have in common."""

    @property
    def num_rows(self) -> int:
        """Rows, with keys or without."""

    @property
    def num_keys(self) -> int:
        """Keys to choose from."""

    @property
    def longest(self) -> int:
        """Keys of the row that has most, at least 1."""

    def blocks(self, *, row_numbers: int, key_numbers: int, budget: int) -> Iterator[Block]:
        """Cut the rows, in order, into blocks; every row is in one.

        Args:
            row_numbers: Numbers held per row and key, beside a gathered key.
            key_numbers: Numbers in a gathered key.
            budget: Numbers that a block may hold; a block has at least one row, whatever it holds.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class Selected:
    """Ids per row, from ``Selected.of``.

    Attributes:
        ids: (R, K) int64, each row ascending, then ``num_keys`` in the slots that are empty.
        num_keys: Keys to choose from.
    """

    ids: Tensor
    num_keys: int

    @classmethod
    def of(cls, ids: Tensor, *, num_keys: int) -> Selected:
        """Check ids and put each row in order, so that the order of slots changes no bit.

        Args:
            ids: (R, K) integer key ids, -1 for an empty slot, in any order.
            num_keys: Keys to choose from.

        Raises:
            ValueError: for another shape or type, an id outside ``[-1, num_keys)``, or a key twice
                in a row: builds differ in whether such a key weighs once or twice, so there is no
                right answer to compare with. ``clean_picks`` empties such slots and counts them.
        """
        if ids.dim() != 2 or ids.dtype.is_floating_point or ids.dtype == torch.bool:
            raise ValueError(
                f"selected keys must be (rows, slots) integers, found {tuple(ids.shape)} of "
                f"{ids.dtype}"
            )
        _check_num_keys(num_keys, ids.shape[0])
        if ids.numel() and not -1 <= int(ids.min()) <= int(ids.max()) < num_keys:
            raise ValueError(
                f"selected keys must lie in [-1, {num_keys}), found {int(ids.min())} to "
                f"{int(ids.max())}; use clean_picks to empty such slots"
            )
        ordered = torch.where(ids < 0, num_keys, ids.to(torch.int64)).sort(dim=1).values
        for start in range(0, ordered.shape[0], _CHECK_ROWS):
            _refuse_repeats(ordered[start : start + _CHECK_ROWS], num_keys, start)
        most = int((ordered < num_keys).sum(1).max()) if ordered.numel() else 0
        return cls(ids=ordered[:, : max(1, most)].contiguous(), num_keys=num_keys)

    @property
    def num_rows(self) -> int:
        """Rows, with keys or without."""
        return self.ids.shape[0]

    @property
    def longest(self) -> int:
        """Keys of the row that has most, at least 1."""
        return max(1, self.ids.shape[1])

    def blocks(self, *, row_numbers: int, key_numbers: int, budget: int) -> Iterator[Block]:
        """Cut the rows into blocks of equal size; see ``Support``."""
        size = max(1, budget // (self.longest * (row_numbers + key_numbers)))
        for start in range(0, self.num_rows, size):
            ids = self.ids[start : start + size]
            mask = ids < self.num_keys
            width = max(1, int(mask.sum(1).max())) if ids.shape[1] else 0
            ids, mask = ids[:, :width], mask[:, :width]
            if not width:
                # No slot at all: one masked key keeps the shapes of the general case.
                ids = ids.new_zeros(ids.shape[0], 1)
                mask = torch.zeros_like(ids, dtype=torch.bool)
            yield Block(
                rows=slice(start, start + ids.shape[0]), mask=mask, ids=torch.where(mask, ids, 0)
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Visible:
    """All keys that a row may see: ``[starts, starts + limits)``, from ``Visible.of``.

    Attributes:
        starts: (R,) int64 on the CPU, first key of each row.
        limits: (R,) int64 on the CPU, number of keys, 0 for a row without any.
        num_keys: Keys to choose from.
        device: Where the keys are.
    """

    starts: Tensor
    limits: Tensor
    num_keys: int
    device: torch.device

    @classmethod
    def of(
        cls,
        starts: Tensor,
        limits: Tensor,
        *,
        num_keys: int,
        device: torch.device | None = None,
    ) -> Visible:
        """Check ranges.

        Args:
            starts: (R,) integers, such as ``RowTable.starts``.
            limits: (R,) integers, such as ``RowTable.limits``.
            num_keys: Keys to choose from.
            device: Where the keys are, by default the CPU.

        Raises:
            ValueError: when a range leaves ``[0, num_keys]`` or the shapes differ.
        """
        if starts.dim() != 1 or starts.shape != limits.shape:
            raise ValueError(
                f"starts and limits must be (rows,) alike, found {tuple(starts.shape)} and "
                f"{tuple(limits.shape)}"
            )
        _check_num_keys(num_keys, starts.shape[0])
        starts, limits = starts.to("cpu", torch.int64), limits.to("cpu", torch.int64)
        wrong = (limits < 0) | ((limits > 0) & ((starts < 0) | (starts + limits > num_keys)))
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise ValueError(
                f"row {row}: keys [{int(starts[row])}, {int(starts[row] + limits[row])}) are not "
                f"inside [0, {num_keys}]"
            )
        return cls(
            starts=starts,
            limits=limits,
            num_keys=num_keys,
            device=device or torch.device("cpu"),
        )

    @property
    def num_rows(self) -> int:
        """Rows, with keys or without."""
        return self.starts.shape[0]

    @property
    def longest(self) -> int:
        """Keys of the row that has most, at least 1."""
        return max(1, int(self.limits.max())) if self.num_rows else 1

    def blocks(self, *, row_numbers: int, key_numbers: int, budget: int) -> Iterator[Block]:
        """Cut the rows into blocks that start at the same key; see ``Support``."""
        starts = torch.where(self.limits > 0, self.starts, 0)
        counts = torch.unique_consecutive(starts, return_counts=True)[1].tolist()
        top = 0
        for count in counts:
            longest = max(1, int(self.limits[top : top + count].max()))
            room = max(0, budget - longest * key_numbers)
            size = max(1, room // (longest * row_numbers))
            for start in range(top, top + count, size):
                yield self._block(slice(start, min(start + size, top + count)), int(starts[start]))
            top += count

    def _block(self, rows: slice, first: int) -> Block:
        limits = self.limits[rows]
        width = max(1, int(limits.max()))
        mask = torch.arange(width) < limits.unsqueeze(1)
        return Block(rows=rows, mask=mask.to(self.device), span=slice(first, first + width))


def _check_num_keys(num_keys: int, num_rows: int) -> None:
    if num_keys < 1 and num_rows:
        raise ValueError(
            f"there are {num_rows} rows and {num_keys} keys; give at least one key, and rows that "
            "attend to none as empty slots or limit 0"
        )


def _refuse_repeats(ordered: Tensor, num_keys: int, first_row: int) -> None:
    repeated = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] < num_keys)
    if repeated.any():
        row, slot = (int(i) for i in repeated.nonzero()[0])
        raise ValueError(
            f"row {first_row + row}: key {int(ordered[row, slot])} is selected twice; use "
            "clean_picks to empty such slots"
        )
