"""GPU-time estimates: what adds up, what is shared, and what costs nothing."""

from dataclasses import replace

import pytest

from harness.scenario.cost import BACKWARD, CASE_S, COMPILE_S, START_S, cost
from harness.scenario.loader import load
from harness.scenario.spec import KernelsSpec, MicrobatchSpec, ModelSpec, Scenario

SMALL = Scenario(
    id="a",
    summary="",
    model=ModelSpec(name="m"),
    kernels=KernelsSpec(dsa_kernel_backend="cudnn", source="hardware"),
    microbatches=(MicrobatchSpec(sequences=(64,)),),
)


def test_start_and_compilation_are_shared_by_what_follows():
    one, two = cost([SMALL]).estimate_s, cost([SMALL, replace(SMALL, id="b")]).estimate_s
    assert one == pytest.approx(START_S + COMPILE_S + CASE_S, rel=1e-3)
    assert two - one == pytest.approx(CASE_S, rel=1e-3)


def test_another_level_between_costs_a_new_start():
    other = replace(SMALL, level="scorer")
    assert cost([SMALL, other, SMALL]).estimate_s > cost([SMALL, SMALL, other]).estimate_s


def test_ranks_repeats_and_backward_multiply():
    spread = replace(SMALL, parallel=replace(SMALL.parallel, context_parallel_size=4))
    assert cost([spread]).most_gpus == 4
    assert cost([spread]).estimate_s > 3.9 * cost([SMALL]).estimate_s
    assert cost([spread], ranks_per_gpu=4).most_gpus == 1
    assert cost([replace(SMALL, repeat=3)]).estimate_s == 3 * cost([SMALL]).estimate_s
    trained = replace(SMALL, training=replace(SMALL.training, backward=True))
    more = cost([trained]).estimate_s - cost([SMALL]).estimate_s
    assert more == pytest.approx((BACKWARD - 1) * CASE_S)


def test_modelled_scenarios_cost_no_gpu():
    modelled = replace(SMALL, kernels=replace(SMALL.kernels, source="modelled"))
    found = cost([modelled])
    assert (found.num_scenarios, found.estimate_s, found.most_gpus) == (0, 0.0, 0)


def test_the_limit_is_above_the_estimate_for_the_shipped_hardware_suite():
    loaded = load(["configs/suites/hardware.yaml"])
    assert loaded.ok
    found = cost(item.scenario for item in loaded.scenarios)
    assert 0 < found.estimate_s < found.limit_s
