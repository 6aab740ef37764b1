"""What this version cannot drive is not run, and says so; what it can drive is not refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.production.errors import CapabilityMissingError
from harness.runtime.levels import _check_supported
from harness.scenario.loader import load
from harness.scenario.spec import ParallelSpec, TrainingSpec

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = [item.scenario for item in load([str(ROOT / "scenarios")]).scenarios]


def test_every_shipped_scenario_can_be_driven():
    assert SHIPPED
    for scenario in SHIPPED:
        _check_supported(scenario)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"level": "scorer", "parallel": ParallelSpec(dynamic_context_parallel=True)},
            "Dynamic CP at level scorer",
        ),
        (
            {"level": "attention", "training": TrainingSpec(backward=True, recompute="full")},
            "recomputation of whole layers",
        ),
    ],
)
def test_a_feature_that_is_missing_is_named(changes, said):
    scenario = replace(SHIPPED[0], **changes)
    with pytest.raises(CapabilityMissingError, match=said):
        _check_supported(scenario)


def test_tensor_parallelism_and_shared_indices_can_be_driven():
    scenario = replace(SHIPPED[0], parallel=ParallelSpec(tensor_model_parallel_size=2))
    _check_supported(scenario)
    (scenario, *_) = [s for s in SHIPPED if s.model.dsa_indexer_topk_freq > 1]
    _check_supported(replace(scenario, level="model"))


def test_dynamic_cp_and_recomputation_of_a_whole_model_can_be_driven():
    dynamic = ParallelSpec(dynamic_context_parallel=True)
    training = TrainingSpec(backward=True, recompute="full")
    _check_supported(replace(SHIPPED[0], level="model", parallel=dynamic, training=training))


def test_a_schedule_orders_steps_wherever_there_are_any():
    scenario = replace(SHIPPED[0], schedule=("F0", "B0"))
    with pytest.raises(CapabilityMissingError, match="schedules at level scorer"):
        _check_supported(replace(scenario, level="scorer"))
    for level in ("attention", "model"):
        _check_supported(replace(scenario, level=level))
