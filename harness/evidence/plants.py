"""Planted selection faults: what ``--inject`` changes, so that each detector can be seen red."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from harness.evidence.history_plants import HISTORY_PLANTS, plant_history
from harness.evidence.memo_plants import MEMO_PLANTS, plant_memo
from harness.evidence.run_plants import RUN_PLANTS, plant_run
from harness.evidence.training_plants import TRAINING_PLANTS, plant_training
from harness.production.recorder import HookCall, Recorder, Transform
from harness.reference.rows import RowTable

Change = Callable[[torch.Tensor, RowTable, int], None]
"""Changes the picks ``[rows, slots]`` of one row in place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plant:
    """A fault of the selection.

    Attributes:
        fits: Rows that it fits, of a table and the number of keys selected for each row.
        change: Makes the fault in one of them.
        last: Whether in the last of them; else in the one with the most visible keys.
    """

    fits: Callable[[RowTable, int], torch.Tensor]
    change: Change
    last: bool = False

    def strike(self, picks: torch.Tensor, table: RowTable) -> None:
        """Change the picks ``[rows, slots]`` of one row that fits.

        Raises:
            ValueError: where no row does, which ``plant`` looks at first.
        """
        rows = self.fits(table, picks.size(1)).nonzero().flatten()
        if not rows.numel():
            raise ValueError("no row of this rank fits the fault to plant; use a longer pack")
        at = -1 if self.last else int(table.limits[rows].argmax())
        self.change(picks, table, int(rows[at]))


def _wrong_index(picks: torch.Tensor, table: RowTable, row: int) -> None:
    """Replace one pick by a visible key that was not picked."""
    start, limit = int(table.starts[row]), int(table.limits[row])
    picked = set(picks[row].tolist())
    picks[row, 0] = next(key for key in range(start, start + limit) if key not in picked)


def _past_limit(picks: torch.Tensor, table: RowTable, row: int) -> None:
    """Replace one pick by the first key of the row's own sequence that it may not see."""
    picks[row, 0] = table.starts[row] + table.limits[row]


def _neighbour_sequence(picks: torch.Tensor, table: RowTable, row: int) -> None:
    """Replace one pick by a key of the sequence before."""
    picks[row, 0] = table.starts[row] - 1


def _key_on_padding(picks: torch.Tensor, table: RowTable, row: int) -> None:
    """Give a padding row a key of a sequence that it is not of.

    A padding row inside a sequence has keys of that sequence, which nobody reads.
    """
    picks[row, 0] = _key_of_another(table)[row]


def _next_past_empty(picks: torch.Tensor, table: RowTable, row: int) -> None:
    """Replace one pick of the sequence before an empty entry by the first key behind the entry.

    As if the empty entry's boundary were skipped, and the sequence ran on into the next one.
    """
    picks[row, 0] = table.starts[row] + table.key_lengths[row]


def _duplicate_index(picks: torch.Tensor, _table: RowTable, row: int) -> None:
    """Repeat a pick in place of another one."""
    picks[row, 1] = picks[row, 0]


def _key_of_another(table: RowTable) -> torch.Tensor:
    behind = table.starts + table.key_lengths
    return torch.where(table.starts > 0, table.starts - 1, behind)


def _padding_rows(table: RowTable, _slots: int) -> torch.Tensor:
    """Padding rows of which there is another sequence's key to be given."""
    return ~table.valid & (_key_of_another(table) < table.num_keys)


def _rows_before_an_empty_entry(table: RowTable, _slots: int) -> torch.Tensor:
    """Real rows of a sequence that has an empty entry behind it, and a sequence behind that."""
    present = table.sequence.unique()
    following = torch.isin(table.sequence + 1, present)
    last = present.max() if present.numel() else 0
    return ~following & (table.sequence < last) & (table.sequence >= 0) & table.valid


PLANTS: dict[str, Plant] = {
    "wrong_index": Plant(
        fits=lambda table, slots: table.valid & (table.limits > slots), change=_wrong_index
    ),
    "past_limit": Plant(
        fits=lambda table, _slots: table.valid & (table.limits < table.key_lengths),
        change=_past_limit,
    ),
    "neighbour_sequence": Plant(
        fits=lambda table, _slots: table.valid & (table.starts > 0), change=_neighbour_sequence
    ),
    "key_on_padding": Plant(fits=_padding_rows, change=_key_on_padding, last=True),
    "next_past_empty": Plant(fits=_rows_before_an_empty_entry, change=_next_past_empty),
    "duplicate_index": Plant(
        fits=lambda table, slots: table.valid & (table.limits >= min(slots, table.num_keys)),
        change=_duplicate_index,
    ),
}
"""Kinds that change a pick. They strike where a row fits: packs of a history differ in that."""


ELSEWHERE = frozenset({*MEMO_PLANTS, *RUN_PLANTS, *TRAINING_PLANTS, *HISTORY_PLANTS})
"""Kinds that other modules plant."""


def plant(
    recorder: Recorder, kinds: tuple[str, ...], table: RowTable, topk: int
) -> tuple[str, ...]:
    """Arrange for the faults to happen in the next forward.

    Args:
        recorder: Whose transforms carry the faults.
        kinds: Names of ``PLANTS``, ``MEMO_PLANTS``, ``RUN_PLANTS``, ``TRAINING_PLANTS``,
            ``HISTORY_PLANTS``;
            ``unfused_path`` (kernels are silently off); ``wrong_value`` or ``wrong_gradient`` (the
            attention's output, or the gradient that flows into it, is a quarter too large);
            ``slight_value`` (the output is too large by the rounding of bf16).
        table: Rows of the rank under the coming microbatch.
        topk: Keys selected for each row.

    Returns:
        Kinds that are left out because the microbatch has no row that they fit.
    """
    recorder.transforms.clear()
    plant_memo(recorder, kinds)
    plant_run(recorder, kinds)
    plant_history(recorder, kinds)
    plant_training(recorder, kinds)
    spared = tuple(k for k in kinds if k in PLANTS and not PLANTS[k].fits(table, topk).any())
    for kind in kinds:
        if kind in ELSEWHERE or kind in spared:
            continue
        if kind == "unfused_path":
            recorder.transforms["use_fused"] = lambda _call, _result: False
            continue
        if kind in _VALUE_PLANTS:
            recorder.transforms["attention"] = _VALUE_PLANTS[kind]
            continue
        strike = PLANTS[kind].strike
        for symbol, place in (("fused_topk", 0), ("naive_topk", 1), ("naive_topk_loss", 0)):
            recorder.transforms[symbol] = _on_indices(strike, table, place)
    return spared


_SURPLUS = 0.25


def _scaled_output(_call: HookCall, output: torch.Tensor) -> torch.Tensor:
    return output + _SURPLUS * output.detach()


def _slightly_scaled_output(_call: HookCall, output: torch.Tensor) -> torch.Tensor:
    """Hides in bf16, whose rounding is as great, and keeps its size in fp32."""
    return output + 2**-8 * output.detach()


def _scaled_gradient(_call: HookCall, output: torch.Tensor) -> torch.Tensor:
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient * (1 + _SURPLUS))
    return output


_VALUE_PLANTS: dict[str, Transform] = {
    "wrong_value": _scaled_output,
    "slight_value": _slightly_scaled_output,
    "wrong_gradient": _scaled_gradient,
}


def _on_indices(
    strike: Callable[[torch.Tensor, RowTable], None], table: RowTable, place: int
) -> Transform:
    def transform(_call: HookCall, result: Any) -> Any:
        parts = list(result)
        parts[place] = parts[place].clone()
        strike(parts[place][0], table)
        return tuple(parts)

    return transform
