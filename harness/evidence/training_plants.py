"""Planted faults of training: losses, gradients and slots that are wrong while picks are right."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from harness.production.recorder import HookCall, Recorder

TRAINING_PLANTS = ("wrong_loss_group", "lost_gradient", "clamped_slots")
"""Kinds of this module."""

_LOSS_PLACES = {"dispatch_attention": 1, "dispatch_topk_loss": 2}
_ATTEND = "flash_attention"


def plant_training(recorder: Recorder, kinds: tuple[str, ...]) -> None:
    """Arrange for the faults to happen in the next forward, through the fused path.

    Args:
        recorder: Whose dressers and transforms carry the faults.
        kinds: ``wrong_loss_group`` (the indexer's loss is summed over all ranks of the run where
            this rank's share is due); ``lost_gradient`` (with more than one rank the indexer's head
            weights are cut off from the graph); ``clamped_slots`` (attention is handed key 0 in
            empty slots, and the full width as length).
    """
    recorder.dressers.pop(_ATTEND, None)
    if "wrong_loss_group" in kinds:
        for symbol, place in _LOSS_PLACES.items():
            recorder.transforms[symbol] = _scaled_loss(place)
    if "lost_gradient" in kinds and _world_size() > 1:
        recorder.transforms["indexer"] = _without_weights
    if "clamped_slots" in kinds:
        recorder.dressers[_ATTEND] = _Clamp().dress


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _scaled_loss(place: int) -> Any:
    def transform(_call: HookCall, result: Any) -> Any:
        if result is None:
            return None
        parts = list(result)
        parts[place] = parts[place] * _world_size()
        return tuple(parts)

    return transform


def _without_weights(_call: HookCall, result: Any) -> Any:
    q, k, weights = result
    return q, k, weights.detach()


class _Clamp:
    """Remembers the table's width between the arguments of one call: ids come before lengths."""

    def __init__(self) -> None:
        self._width = 0

    def dress(self, name: str, value: Any) -> Any:
        """Change the table of ids and the lengths, and nothing else."""
        if name == "topk_idxs":
            self._width = value.size(-1)
            return value.clamp(min=0)
        if name == "topk_length":
            return torch.full_like(value, self._width)
        return value
