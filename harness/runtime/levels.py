"""Chooses the level of a scenario on one rank."""

from __future__ import annotations

from harness.production.errors import CapabilityMissingError
from harness.production.given_params import cp_size_carried
from harness.production.probes import build_facts
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
    _check_supported(scenario, dynamic_cp=build_facts(stage.build)["has_dynamic_cp"])
    if scenario.parallel.dynamic_context_parallel:
        # Megatron gets to answer for itself: builds without it refuse, in their own words.
        with cp_size_carried():
            run_model_level(stage)
        return
    match scenario.level:
        case "scorer":
            run_scorer_level(stage)
        case "attention":
            run_attention_level(stage)
        case "model":
            run_model_level(stage)
        case "kernel":
            run_kernel_level(stage)


def _check_supported(scenario: Scenario, *, dynamic_cp: bool = False) -> None:
    """Raise for what cannot be driven; Dynamic CP is tried where the build knows nothing of it."""
    training = scenario.training
    trains = training.backward or training.dsa_indexer_loss_coeff > 0
    configured = scenario.parallel.context_parallel_size
    tried = (
        scenario.level == "model"
        and not dynamic_cp
        and all(mb.cp in (None, configured) for mb in scenario.microbatches)
    )
    unsupported = {
        "unpacked batches at level model": scenario.level == "model"
        and any(mb.qkv_format != "thd" for mb in scenario.microbatches),
        "training at level scorer": trains and scenario.level == "scorer",
        "an indexer loss without backward": trains and not training.backward,
        "recomputation": training.recompute != "none",
        "Dynamic CP": scenario.parallel.dynamic_context_parallel and not tried,
        "schedules at another level than model": scenario.schedule is not None
        and scenario.level != "model",
    }
    for feature, asked in unsupported.items():
        if asked:
            raise CapabilityMissingError(f"support for {feature} in this version of the harness")
