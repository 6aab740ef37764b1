"""What one case computed on one rank, named, so that another run of it can be held against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from harness.evidence.observation import ScorerObservation
from harness.evidence.trained_call import TrainedCall, grad_or_zero
from harness.layout import Pack
from harness.production.groups import Groups, gather_rows, sum_over_ranks, sum_over_shards
from harness.production.packs import to_packed_order
from harness.reference.expected import Expected
from harness.reference.group_values import packed_rows
from harness.scenario.spec import Scenario

Name = tuple[int, str]
"""Layer (0 for values of the whole model) and name."""

SELECTED = "selected_keys"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scored:
    """Operands of one layer's scorer on one rank, to tell equal scores from wrong picks.

    Attributes:
        q: ``[batch, rows, heads, dim]``.
        k: ``[batch, keys, dim]`` all keys in packed order.
        weights: ``[batch, rows, heads]``.
    """

    q: torch.Tensor
    k: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseValues:
    """Values of one case on one rank, plain and outside any graph.

    Gradients are those of a training step: where Megatron averages over ranks, each rank's part is
    divided by their number.

    Attributes:
        rows: ``[rows, ...]`` by local query row.
        keys: ``[rows, ...]`` by local key row.
        reduced: Any shape, reduced over the context-parallel group.
        scales: Of reduced values: typical size of the sum of their terms, of either sign, which
            may be far above the sum itself, and the number of terms on a rank.
        scored: Layer to the operands of its scorer.
    """

    rows: dict[Name, torch.Tensor] = field(default_factory=dict)
    keys: dict[Name, torch.Tensor] = field(default_factory=dict)
    reduced: dict[Name, torch.Tensor] = field(default_factory=dict)
    scales: dict[Name, tuple[torch.Tensor, int]] = field(default_factory=dict)
    scored: dict[int, Scored] = field(default_factory=dict)

    def add_selection(
        self, layer: int, observation: ScorerObservation, keys: torch.Tensor | None
    ) -> None:
        """Take in what a layer attended with.

        Args:
            layer: The layer.
            observation: Of its scorer.
            keys: ``[batch, keys, dim]`` in packed order; None for a layer that scores nothing.
        """
        self.rows[layer, SELECTED] = observation.picks.transpose(0, 1).contiguous()
        if keys is not None:
            self.scored[layer] = Scored(q=observation.q, k=keys, weights=observation.weights)

    def add_call(
        self, layer: int, call: TrainedCall, groups: Groups, *, share: Mapping[str, float]
    ) -> None:
        """Take in a trained call.

        Args:
            layer: Its layer.
            call: The call.
            groups: Groups of this rank.
            share: Factor of each gradient, by name; what is not named keeps its size.
        """
        for name, tensor in call.of_rows().items():
            self.rows[layer, name] = tensor * share.get(name, 1.0)
        for name, tensor in call.of_keys().items():
            self.keys[layer, name] = tensor * share.get(name, 1.0)

    def add_parameter(
        self, name: Name, parameter: torch.Tensor, groups: Groups, share: float
    ) -> None:
        """Take in a parameter's gradient as a training step reduces it over its groups."""
        gradient = sum_over_shards(grad_or_zero(parameter), parameter, groups)
        self.reduced[name] = sum_over_ranks(gradient, groups) * share

    def add_scale(self, name: Name, due: Expected, groups: Groups, share: float) -> None:
        """Take in the error scale of a sum over ranks, from this rank's part of it."""
        scale = due.scale.expand(due.value.shape)
        total = sum_over_ranks(scale.square(), groups).sqrt() * share
        self.scales[name] = (total, due.length)


def indexer_share(scenario: Scenario, groups: Groups) -> float:
    """Part that a rank's indexer loss has in the group's: training averages or sums over ranks."""
    return 1.0 if scenario.training.calculate_per_token_loss else 1.0 / groups.cp_size


def in_packed_order(values: CaseValues, pack: Pack, groups: Groups) -> CaseValues:
    """Gather the values of a group; rows and keys then stand in packed order on every rank."""
    rows = {
        name: packed_rows(gather_rows(tensor, groups), pack) for name, tensor in values.rows.items()
    }
    keys = {
        name: to_packed_order(torch.cat(gather_rows(tensor, groups)), pack)
        for name, tensor in values.keys.items()
    }
    return CaseValues(rows=rows, keys=keys, reduced=values.reduced)
