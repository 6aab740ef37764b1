"""Chooses the level of a scenario on one rank."""

from __future__ import annotations

from harness.production.errors import CapabilityMissingError
from harness.runtime.engine import Stage
from harness.runtime.level_attention import run_attention_level
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


def _check_supported(scenario: Scenario) -> None:
    training = scenario.training
    trains = training.backward or training.dsa_indexer_loss_coeff > 0
    unsupported = {
        "unpacked batches at level model": scenario.level == "model"
        and any(mb.qkv_format != "thd" for mb in scenario.microbatches),
        "indices shared between layers": scenario.level == "model"
        and scenario.model.dsa_indexer_topk_freq > 1,
        "training at level scorer": trains and scenario.level == "scorer",
        "an indexer loss without backward": trains and not training.backward,
        "recomputation": training.recompute != "none",
        "CUDA graphs": scenario.graph.cuda_graph_impl != "none",
        "Dynamic CP": scenario.parallel.dynamic_context_parallel,
        "tensor parallelism": scenario.parallel.tensor_model_parallel_size > 1,
        "schedules": scenario.schedule is not None,
    }
    for feature, asked in unsupported.items():
        if asked:
            raise CapabilityMissingError(f"support for {feature} in this version of the harness")
