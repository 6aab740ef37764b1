"""What the indexer loss is: coefficient, keys, rows that count, and over what the mean is taken.

Source: section 2.1 of https://github.com/deepseek-ai/DeepSeek-V3.2-Exp/blob/main/DeepSeek_V3_2.pdf
for the loss of one row; the means are those of https://github.com/NVIDIA/Megatron-LM
(``dsa_indexer_loss.py``, and the reduce and average groups in ``DSAttention.forward``).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.reference.rows import RowTable


class LossReduction(enum.StrEnum):
    """How rows become a rank's loss, and ranks' losses the group's."""

    SUM = "sum"
    """``calculate_per_token_loss``: a rank sums its rows, the group sums its ranks."""
    RANK_MEAN = "rank_mean"
    """Megatron's default: a rank takes the mean over its own counted rows, and what is logged is
    the plain average over ranks. So ranks weigh alike however many rows they count, and one that
    counts none pulls the average down. Equal to ``GROUP_MEAN`` when all count equally many."""
    GROUP_MEAN = "group_mean"
    """Mean over the counted rows of the whole group, the same for every CP size; a rank's loss is
    its share of it."""


class CountedRows(enum.StrEnum):
    """Which rows are summed and counted. A row without keys adds 0 either way."""

    ALL = "all"
    """Every local row, padding and tail too: Megatron without ``real_token_mask_q``."""
    REAL = "real"
    """Real tokens only: Megatron with that mask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LossSpec:
    """The indexer loss of one layer.

    Attributes:
        coeff: ``dsa_indexer_loss_coeff``; at 0 loss and gradients are 0.
        sparse: ``dsa_indexer_use_sparse_loss``: over the selected keys, else over all visible ones.
        reduction: How rows become the loss.
        counted: Which rows count.
        backward_scale: Upstream gradient of every rank's loss. Megatron's schedules set
            ``loss_scale``, and where ``calculate_per_token_loss`` is off multiply it by
            ``cp_size / num_microbatches``; outside a schedule it is 1.
        relu: ``dsa_indexer_scoring_relu``.

    Raises:
        ValueError: for a coefficient that is negative or not finite.
    """

    coeff: float
    sparse: bool
    reduction: LossReduction = LossReduction.RANK_MEAN
    counted: CountedRows = CountedRows.ALL
    backward_scale: float = 1.0
    relu: bool = True

    def __post_init__(self) -> None:
        """Refuse a coefficient that no training uses."""
        if not (math.isfinite(self.coeff) and self.coeff >= 0):
            raise ValueError(f"coeff must be finite and at least 0, found {self.coeff}")

    def counted_rows(self, table: RowTable) -> Tensor:
        """Return (R,) bool, the rows of a table that count."""
        return table.valid if self.counted == CountedRows.REAL else torch.ones_like(table.valid)

    def divisors(self, counts: Sequence[int]) -> tuple[float, ...]:
        """Return what each rank divides its sum by, at least 1, from the rows that each counts."""
        if self.reduction == LossReduction.SUM:
            return (1.0,) * len(counts)
        if self.reduction == LossReduction.GROUP_MEAN:
            return (float(max(1, sum(counts))),) * len(counts)
        return tuple(float(max(1, count)) for count in counts)

    def group_factor(self, num_ranks: int) -> float:
        """Return what the sum of the ranks' losses is multiplied by to give the group's."""
        return 1.0 / num_ranks if self.reduction == LossReduction.RANK_MEAN else 1.0
