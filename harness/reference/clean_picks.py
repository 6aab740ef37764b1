"""Selected keys of a rank as attention may use them: what a row may not see is left out."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.reference.rows import RowTable


@dataclass(frozen=True, kw_only=True, slots=True)
class CleanPicks:
    """Picks of the rows of a table.

    Attributes:
        ids: (R, P) int64, packed ids, -1 in empty slots.
        invisible: (R,) int64, picks emptied because the row may not see the key. Megatron masks
            these too before it attends, so they change no value.
        repeated: (R,) int64, picks emptied because the row picked the key before. What a repeated
            key weighs is nobody's contract: values of such rows should not be judged.
    """

    ids: Tensor
    invisible: Tensor
    repeated: Tensor


@torch.no_grad()
def clean_picks(picks: Tensor, table: RowTable) -> CleanPicks:
    """Empty the slots that hold a key which the row may not see, or holds already.

    Args:
        picks: (local rows, P) integer packed key ids, any negative number for an empty slot.
        table: The rows, all of a rank's or some.

    Raises:
        ValueError: when picks are not those of the rank's local rows.
    """
    if (
        picks.dim() != 2
        or picks.shape[0] != table.num_local_rows
        or picks.dtype.is_floating_point
        or picks.dtype == torch.bool
    ):
        raise ValueError(
            f"picks must be ({table.num_local_rows} local rows, slots) integers, found "
            f"{tuple(picks.shape)} of {picks.dtype}"
        )
    device = picks.device
    ids = picks[table.row.to(device)].to(torch.int64)
    starts, limits = (t.to(device).unsqueeze(1) for t in (table.starts, table.limits))
    filled = ids >= 0
    visible = filled & (ids >= starts) & (ids < starts + limits)
    kept = torch.where(visible, ids, -1)
    ordered, order = kept.sort(dim=1, stable=True)
    again = torch.zeros_like(visible)
    again[:, 1:] = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    repeated = torch.zeros_like(visible).scatter_(1, order, again)
    return CleanPicks(
        ids=torch.where(repeated, -1, kept),
        invisible=(filled & ~visible).sum(1),
        repeated=repeated.sum(1),
    )
