"""The indexer loss as Megatron logs it: collected by its tracker, reduced over its groups."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from harness.production.groups import Groups
from harness.scenario.spec import Scenario

_DSA = "megatron.core.transformer.experimental_attention_variant.dsa"
_METRIC = "indexer loss"
"""Key under which Megatron hands the reduced value to the training loop."""


def _helper() -> Any:
    return importlib.import_module(_DSA).DSAIndexerLossLoggingHelper


def clear_log() -> None:
    """Forget what earlier forwards have left in the tracker, storage included."""
    _helper().tracker.clear()


def take_log() -> dict[str, Any]:
    """Take out what earlier forwards have left in the tracker, to be put back later."""
    taken = dict(_helper().tracker)
    clear_log()
    return taken


def put_log(taken: dict[str, Any]) -> None:
    """Put back what was taken out of the tracker."""
    _helper().tracker.update(taken)


def logged_loss(groups: Groups, *, loss_scale: float = 1.0) -> torch.Tensor:
    """Let Megatron reduce what its tracker has collected, as its training loop does.

    Every rank of the world takes part. Data-parallel replicas that ran nothing take part with
    ``log_nothing`` before; their zeros are taken out of the mean again.

    Args:
        groups: Groups of this rank.
        loss_scale: Factor that the training loop gives, one over the number of microbatches.

    Returns:
        A scalar; 0 where the build logs nothing, as with a coefficient of 0.
    """
    totals: dict[str, torch.Tensor] = {}
    _helper().track_indexer_metrics(
        loss_scale=loss_scale, iteration=0, writer=None, total_loss_dict=totals
    )
    found = totals.get(_METRIC)
    return torch.zeros(()) if found is None else found.detach() * groups.dp_size


def log_nothing(scenario: Scenario, groups: Groups, num_layers: int) -> None:
    """Enter a loss of 0, so that a replica without work joins the reduction of the others."""
    if not logs_loss(scenario):
        return
    spread = groups.collection.cp if groups.cp_size > 1 else None
    per_token = scenario.training.calculate_per_token_loss
    _helper().save_loss_to_tracker(
        loss=torch.zeros(()),
        layer_number=1,
        num_layers=num_layers,
        reduce_group=spread if per_token else None,
        avg_group=None if per_token else spread,
    )


def logs_loss(scenario: Scenario) -> bool:
    """True when a step of the scenario computes an indexer loss at all."""
    training = scenario.training
    return training.backward and training.dsa_indexer_loss_coeff > 0
