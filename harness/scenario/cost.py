"""Estimate of the GPU time of scenarios, to plan a booking with: from shapes and limits alone.

Nothing here was measured on a GPU. The parts are assumptions, rounded up, and stand in one place so
that the first runs can correct them:

==========  =====================================================================================
part        GPU seconds
==========  =====================================================================================
start       per generation of processes: imports, context and communicator; scenarios of equal
            ranks, level and backend share one under isolation ``group``
compile     per new kernel shape: a level, backend and widths of the model, once in a generation
case        per microbatch and seed: the forward (and backward) with its comparison
reference   exact scores of all judged rows: 2 R N H D operations at a tenth of a GPU's fp32 rate
==========  =====================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.scenario.spec import Scenario

START_S = 25.0
COMPILE_S = 40.0
CASE_S = 1.5
BACKWARD = 2.0
"""A case with backward costs as much as that many."""
REFERENCE_OPERATIONS_PER_S = 5e12


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """GPU time of a list of scenarios in order.

    Attributes:
        num_scenarios: How many.
        estimate_s: GPU seconds by the assumptions above.
        limit_s: GPU seconds if every scenario ran to its time limit.
        most_gpus: GPUs that the largest one holds at once.
    """

    num_scenarios: int
    estimate_s: float
    limit_s: float
    most_gpus: int


def cost(scenarios: Iterable[Scenario], *, ranks_per_gpu: int = 1) -> Cost:
    """Estimate the GPU time of scenarios that follow each other.

    Args:
        scenarios: In the order of the run.
        ranks_per_gpu: Ranks that share a device.
    """
    estimate = limit = 0.0
    most = number = 0
    generation: tuple[object, ...] | None = None
    compiled: set[tuple[object, ...]] = set()
    for scenario in scenarios:
        if not uses_gpu(scenario):
            continue
        gpus = -(-scenario.num_ranks // ranks_per_gpu)
        seconds = _cases_s(scenario)
        if (key := _generation(scenario)) != generation:
            generation, compiled = key, set()
            seconds += START_S
        if (shape := _shape(scenario)) not in compiled:
            compiled.add(shape)
            seconds += COMPILE_S
        number += 1
        most = max(most, gpus)
        estimate += gpus * seconds * scenario.repeat
        limit += gpus * (START_S + scenario.limits.time_s) * scenario.repeat
    return Cost(num_scenarios=number, estimate_s=estimate, limit_s=limit, most_gpus=most)


def uses_gpu(scenario: Scenario) -> bool:
    """Whether a scenario runs on GPUs where there are any."""
    return scenario.kernels.source != "modelled"


def _generation(scenario: Scenario) -> tuple[object, ...]:
    return (scenario.num_ranks, scenario.level, scenario.kernels.dsa_kernel_backend)


def _shape(scenario: Scenario) -> tuple[object, ...]:
    model = scenario.model
    widths = (model.dsa_indexer_n_heads, model.num_attention_heads, model.dsa_indexer_topk)
    return (scenario.overlays, *widths)


def _cases_s(scenario: Scenario) -> float:
    each = CASE_S * (BACKWARD if scenario.training.backward else 1.0)
    seeds = len(scenario.values.seeds)
    model = scenario.model
    width = 2.0 * model.dsa_indexer_n_heads * model.dsa_indexer_head_dim
    total = 0.0
    for microbatch in scenario.microbatches:
        tokens = sum(microbatch.sequences)
        rows = tokens / max(scenario.parallel.context_parallel_size, 1)
        if scenario.reference.rows != "all":
            rows = min(rows, float(scenario.reference.rows))
        total += seeds * (each + rows * tokens * width / REFERENCE_OPERATIONS_PER_S)
    ranks = len(scenario.logical_cp_ranks) if scenario.level == "scorer" else 1
    return total * ranks
