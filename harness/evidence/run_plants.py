"""Planted faults of a whole run: what transfers, state and further launches have to notice."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from harness.production.recorder import HookCall, Recorder

EVERYWHERE = "everywhere"
"""Attribute of transforms that also work on the tensors of a watched forward."""

_PICKS = {"fused_topk": 0, "naive_topk": 1, "naive_topk_loss": 0}
"""Scorer to the place of the picks in its result."""


def plant_run(recorder: Recorder, kinds: tuple[str, ...]) -> None:
    """Arrange for the faults of this module among ``kinds``."""
    for kind in kinds:
        if kind in RUN_PLANTS:
            RUN_PLANTS[kind](recorder)


def _host_read(recorder: Recorder) -> None:
    def read(call: HookCall, result: Any) -> Any:
        if call.layer == 1:
            result[-1].flatten()[0].item()
        return result

    setattr(read, EVERYWHERE, True)
    recorder.transforms["indexer"] = read


def _group_left(recorder: Recorder) -> None:
    def swap(call: HookCall, result: Any) -> Any:
        module = call.arguments["self"].indexer
        other = copy.copy(module.pg_collection)
        other.cp = other.tp
        module.pg_collection = other
        return result

    recorder.transforms["attention"] = swap


def _config_left(recorder: Recorder) -> None:
    def flip(call: HookCall, result: Any) -> Any:
        config = call.arguments["self"].config
        config.calculate_per_token_loss = not config.calculate_per_token_loss
        return result

    recorder.transforms["attention"] = flip


def _kept_output(recorder: Recorder) -> None:
    """Hold on to the output of every forward, as a cache without bounds does."""
    kept = recorder.planted.setdefault("kept_output", [])

    def keep(_call: HookCall, output: torch.Tensor) -> torch.Tensor:
        kept.append(output.detach().clone())
        return output

    recorder.transforms["attention"] = keep


def _second_launch(recorder: Recorder) -> None:
    """Select other keys from the second launch on."""
    seen: Counter[int] = Counter()

    def change(call: HookCall, picks: torch.Tensor) -> None:
        seen[call.layer] += 1
        if seen[call.layer] > 1:
            _spoil(picks)

    _change_picks(recorder, change)


def _second_gradient(recorder: Recorder) -> None:
    """Hand on another gradient from the third training on: the first that is held against one."""
    seen: Counter[int] = Counter()

    def change(call: HookCall, output: torch.Tensor) -> torch.Tensor:
        seen[call.layer] += 1
        if seen[call.layer] > 2 and output.requires_grad:
            output.register_hook(lambda gradient: gradient * 1.25)
        return output

    recorder.transforms["attention"] = change


def _chunk_picks(recorder: Recorder) -> None:
    """Select other keys once a forward scores in more chunks than the first one did."""
    usual: dict[int, int] = {}

    def change(call: HookCall, picks: torch.Tensor) -> None:
        chunks = len(recorder.of("indexer_forward", layer=call.layer))
        if chunks > usual.setdefault(call.layer, chunks):
            _spoil(picks)

    _change_picks(recorder, change)


def _change_picks(recorder: Recorder, change: Callable[[HookCall, torch.Tensor], None]) -> None:
    for symbol, place in _PICKS.items():
        recorder.transforms[symbol] = _on_picks(change, place)


def _on_picks(
    change: Callable[[HookCall, torch.Tensor], None], place: int
) -> Callable[[HookCall, Any], Any]:
    def transform(call: HookCall, result: Any) -> Any:
        parts = list(result)
        parts[place] = parts[place].clone()
        change(call, parts[place][0])
        return tuple(parts)

    return transform


def _spoil(picks: torch.Tensor) -> None:
    """Empty a slot of the last row: rows that late have more keys than slots."""
    picks[-1, 0] = -1


RUN_PLANTS: dict[str, Callable[[Recorder], None]] = {
    "host_read": _host_read,
    "group_left": _group_left,
    "config_left": _config_left,
    "kept_output": _kept_output,
    "second_launch": _second_launch,
    "second_gradient": _second_gradient,
    "chunk_picks": _chunk_picks,
}
"""Kind to what arranges for it: a host read in layer 1; a module's group, or a flag of the
configuration, left changed; outputs that are never let go; picks or gradients that change with a
further launch, or picks with the chunk size."""
