"""Planted selection faults: what ``--inject`` changes, so that each detector can be seen red."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.evidence.history_plants import HISTORY_PLANTS, plant_history
from harness.evidence.memo_plants import MEMO_PLANTS, plant_memo
from harness.evidence.run_plants import RUN_PLANTS, plant_run
from harness.evidence.training_plants import TRAINING_PLANTS, plant_training
from harness.production.recorder import HookCall, Recorder, Transform
from harness.reference.rows import RowTable

Plant = Callable[[torch.Tensor, RowTable], None]
"""Changes picks ``[rows, topk]`` in place."""


def _row(table: RowTable, fits: torch.Tensor) -> int:
    """Index of the valid row with the most visible keys that fits."""
    candidates = torch.where(fits & table.valid, table.limits, torch.full_like(table.limits, -1))
    best = int(candidates.argmax())
    if int(candidates[best]) < 0:
        raise ValueError(
            "no row of this rank fits the fault to plant; use a longer pack, and several sequences "
            "for neighbour_sequence, with an empty entry between them for next_past_empty"
        )
    return best


def wrong_index(picks: torch.Tensor, table: RowTable) -> None:
    """Replace one pick by a visible key that was not picked."""
    row = _row(table, table.limits > picks.size(1))
    start, limit = int(table.starts[row]), int(table.limits[row])
    picked = set(picks[row].tolist())
    picks[row, 0] = next(key for key in range(start, start + limit) if key not in picked)


def past_limit(picks: torch.Tensor, table: RowTable) -> None:
    """Replace one pick by the first key of the row's own sequence that it may not see."""
    row = _row(table, table.limits < table.key_lengths)
    picks[row, 0] = table.starts[row] + table.limits[row]


def neighbour_sequence(picks: torch.Tensor, table: RowTable) -> None:
    """Replace one pick by a key of the sequence before."""
    row = _row(table, table.starts > 0)
    picks[row, 0] = table.starts[row] - 1


def key_on_padding(picks: torch.Tensor, table: RowTable) -> None:
    """Give a padding row a key of a sequence that it is not of.

    A padding row inside a sequence has keys of that sequence, which nobody reads.
    """
    keys = _key_of_another(table)
    row = int(_padding_rows(table).nonzero().flatten()[-1])
    picks[row, 0] = keys[row]


def next_past_empty(picks: torch.Tensor, table: RowTable) -> None:
    """Replace one pick of the sequence before an empty entry by the first key behind the entry.

    As if the empty entry's boundary were skipped, and the sequence ran on into the next one.
    """
    row = _row(table, _rows_before_an_empty_entry(table))
    picks[row, 0] = table.starts[row] + table.key_lengths[row]


def _key_of_another(table: RowTable) -> torch.Tensor:
    behind = table.starts + table.key_lengths
    return torch.where(table.starts > 0, table.starts - 1, behind)


def _padding_rows(table: RowTable) -> torch.Tensor:
    """Padding rows of which there is another sequence's key to be given."""
    return ~table.valid & (_key_of_another(table) < table.num_keys)


def _rows_before_an_empty_entry(table: RowTable) -> torch.Tensor:
    """Real rows of a sequence that has an empty entry behind it, and a sequence behind that."""
    present = table.sequence.unique()
    following = torch.isin(table.sequence + 1, present)
    last = present.max() if present.numel() else 0
    return ~following & (table.sequence < last) & (table.sequence >= 0) & table.valid


def duplicate_index(picks: torch.Tensor, table: RowTable) -> None:
    """Repeat a pick in place of another one."""
    row = _row(table, table.limits >= picks.size(1))
    picks[row, 1] = picks[row, 0]


PLANTS: dict[str, Plant] = {
    "wrong_index": wrong_index,
    "past_limit": past_limit,
    "neighbour_sequence": neighbour_sequence,
    "key_on_padding": key_on_padding,
    "next_past_empty": next_past_empty,
    "duplicate_index": duplicate_index,
}


_FITTING: dict[str, Callable[[RowTable, int], torch.Tensor]] = {
    "wrong_index": lambda table, topk: table.valid & (table.limits > topk),
    "past_limit": lambda table, _topk: table.valid & (table.limits < table.key_lengths),
    "neighbour_sequence": lambda table, _topk: table.valid & (table.starts > 0),
    "key_on_padding": lambda table, _topk: _padding_rows(table),
    "next_past_empty": lambda table, _topk: _rows_before_an_empty_entry(table),
    "duplicate_index": lambda table, topk: (
        table.valid & (table.limits >= min(topk, table.num_keys))
    ),
}
"""Rows that a kind fits: it strikes where there is one, and packs of a history differ in that."""


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
    spared = tuple(k for k in kinds if k in _FITTING and not bool(_FITTING[k](table, topk).any()))
    for kind in kinds:
        if kind in ELSEWHERE or kind in spared:
            continue
        if kind == "unfused_path":
            recorder.transforms["use_fused"] = lambda _call, _result: False
            continue
        if kind in _VALUE_PLANTS:
            recorder.transforms["attention"] = _VALUE_PLANTS[kind]
            continue
        change = PLANTS[kind]
        for symbol, place in (("fused_topk", 0), ("naive_topk", 1), ("naive_topk_loss", 0)):
            recorder.transforms[symbol] = _on_indices(change, table, place)
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


def _on_indices(change: Plant, table: RowTable, place: int) -> Transform:
    def transform(_call: HookCall, result: Any) -> Any:
        parts = list(result)
        parts[place] = parts[place].clone()
        change(parts[place][0], table)
        return tuple(parts)

    return transform
