"""Chooses the level of a scenario on one rank."""

from __future__ import annotations

from harness.production.errors import CapabilityMissingError
from harness.runtime.engine import Stage
from harness.runtime.level_attention import run_attention_level
from harness.runtime.level_kernel import run_kernel_level
from harness.runtime.level_model import run_model_level
from harness.runtime.level_scorer import run_scorer_level
from harness.scenario.spec import Scenario


def run_level(stage: Stage) -> None:
    """Run the scenario at its level.

    Raises:
        CapabilityMissingError: for a level or feature this version cannot drive.
    """
    scenario = stage.task.scenario
    _check_supported(scenario)
    match scenario.level:
        case "scorer":
            run_scorer_level(stage)
        case "attention":
            run_attention_level(stage)
        case "model":
            run_model_level(stage)
        case "kernel":
            run_kernel_level(stage)


def _check_supported(scenario: Scenario) -> None:
    """Raise for what cannot be driven.

    Dynamic CP at level ``model`` is tried on every build: one without it refuses, in its own words.
    """
    training = scenario.training
    trains = training.backward or training.dsa_indexer_loss_coeff > 0
    dynamic = scenario.parallel.dynamic_context_parallel
    by_layer = scenario.level == "attention" and (dynamic or training.recompute != "none")
    unsupported = {
        "training at level scorer": trains and scenario.level == "scorer",
        "an indexer loss without backward": trains and not training.backward,
        "recomputation of whole layers at level attention": training.recompute == "full"
        and scenario.level == "attention",
        "Dynamic CP at level scorer": dynamic and scenario.level == "scorer",
        "tensor parallelism around a layer of its own at level attention": by_layer
        and scenario.parallel.tensor_model_parallel_size > 1,
        "schedules at level scorer": scenario.schedule is not None and scenario.level == "scorer",
    }
    for feature, asked in unsupported.items():
        if asked:
            raise CapabilityMissingError(f"support for {feature} in this version of the harness")
