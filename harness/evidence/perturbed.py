"""What a scorer should have been given, where its call was broken on purpose."""

from __future__ import annotations

from dataclasses import replace

from harness.evidence.observation import ScorerObservation
from harness.kernels.wrapping import unwrap
from harness.production.recorder import Recorder
from harness.scenario.spec import Scenario


def as_handed_over(
    recorder: Recorder, observation: ScorerObservation | None, scenario: Scenario, layer: int
) -> ScorerObservation | None:
    """Return an observation whose operands are the layer's own, and not the broken ones.

    Judged by what it was given, a scorer that got half of the heads would be right.
    """
    calls = recorder.of("indexer", layer=layer)
    if observation is None or scenario.perturb.fact is None or not calls:
        return observation
    q, _k, weights = calls[-1].result
    return replace(
        observation,
        q=unwrap(q).transpose(0, 1),
        k=observation.k.to(q.dtype),
        weights=unwrap(weights).transpose(0, 1),
    )
