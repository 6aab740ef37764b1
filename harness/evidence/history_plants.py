"""Planted faults of a history: groups, layouts and selections that are another microbatch's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from harness.production.recorder import HookCall, Recorder

_PICKS = {"fused_topk": 0, "naive_topk": 1, "naive_topk_loss": 0}
"""Scorer to the place of the picks in its result."""


def plant_history(recorder: Recorder, kinds: tuple[str, ...]) -> None:
    """Arrange for the faults of this module among ``kinds``; what they keep outlives a forward."""
    recorder.dressers.pop("rotary", None)
    for kind in kinds:
        if kind in HISTORY_PLANTS:
            HISTORY_PLANTS[kind](recorder)


def _group_kept(recorder: Recorder) -> None:
    """From the second microbatch on the layers keep its group, whatever their caller puts back.

    With that of the first they would meet other ranks in a gather, or none, and hang.
    """
    begun: int = recorder.planted.get("group_kept", 0)
    recorder.planted["group_kept"] = begun + 1
    if begun == 0:
        return

    def keep(call: HookCall, result: Any) -> Any:
        module = call.arguments["self"]
        kept = copy.copy(module.pg_collection)
        module.pg_collection = kept
        if module.indexer is not None:
            module.indexer.pg_collection = kept
        return result

    recorder.transforms["attention"] = keep


def _static_rotary(recorder: Recorder) -> None:
    """The rotary embedding is given the configured group, whatever the microbatch's is."""
    # Megatron has to be the build that runs, which is so once something is planted.
    from harness.production.groups import configured_group

    recorder.dressers["rotary"] = lambda name, value: (
        configured_group() if name == "cp_group" else value
    )


def _stale_layout(recorder: Recorder) -> None:
    """Layout tables of the first microbatch serve every later one that has as many rows."""
    kept: dict[str, Any] = recorder.planted.setdefault("stale_layout", {})

    def serve(call: HookCall, result: Any) -> Any:
        first = kept.setdefault(call.symbol, result)
        return first if _shapes(first) == _shapes(result) else result

    for symbol in ("layout_tables", "layout_tables_host"):
        recorder.transforms[symbol] = serve


def _shapes(tables: Any) -> list[torch.Size]:
    parts = tables if isinstance(tables, tuple) else (tables,)
    return [part.shape for part in parts if isinstance(part, torch.Tensor)]


def _later_selection(recorder: Recorder) -> None:
    """What is computed again in backward selects what the latest forward of all selected."""
    latest: dict[int, torch.Tensor] = recorder.planted.setdefault("later_selection", {})

    def select(call: HookCall, result: Any, place: int) -> Any:
        parts = list(result)
        if len(recorder.of("attention", layer=call.layer)) < 2:
            latest[call.layer] = parts[place].clone()
        elif call.layer in latest and latest[call.layer].shape == parts[place].shape:
            parts[place] = latest[call.layer].clone()
        return tuple(parts)

    def at(place: int) -> Callable[[HookCall, Any], Any]:
        return lambda call, result: select(call, result, place)

    for symbol, place in _PICKS.items():
        recorder.transforms[symbol] = at(place)


HISTORY_PLANTS: dict[str, Callable[[Recorder], None]] = {
    "group_kept": _group_kept,
    "static_rotary": _static_rotary,
    "stale_layout": _stale_layout,
    "later_selection": _later_selection,
}
"""Kind to what arranges for it."""
