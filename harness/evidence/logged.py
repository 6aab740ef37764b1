"""The indexer loss that Megatron logs, against the mean over the layers that have an indexer."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from harness.record.evidence import ValueEvidence
from harness.reference.expected import Expected, compare_expected
from harness.reference.site import Site
from harness.reference.tolerances import load_tolerances
from harness.scenario.spec import Scenario


def logged_value(
    logged: torch.Tensor, losses: Mapping[int, Expected], scenario: Scenario, site: Site
) -> ValueEvidence:
    """Hold the logged loss against the mean of the group's losses; 0 where nothing has a loss.

    Args:
        logged: What Megatron's tracker reduced to.
        losses: Layer to the loss of its group, of the layers that compute one.
        scenario: The scenario.
        site: Where it was logged.
    """
    zero = torch.zeros(())
    due = Expected(value=zero, scale=zero)
    if losses:
        due = Expected(
            value=torch.stack([loss.value for loss in losses.values()]).mean(),
            scale=torch.stack([loss.scale for loss in losses.values()]).mean(),
            length=sum(loss.length for loss in losses.values()),
        )
    return compare_expected(
        "logged_loss",
        logged.to(due.value.dtype),
        due,
        dtype=scenario.values.dtype,
        tolerances=load_tolerances(),
    ).evidence(site)
