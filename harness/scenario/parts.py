"""Parts of the ranks that run side by side under Dynamic CP, each with a pack of its own.

Ranks of one tensor-parallel shard are cut into runs of neighbours, one for each effective size.
"""

from __future__ import annotations

from dataclasses import replace

from harness.scenario.spec import MicrobatchSpec, Scenario


def num_parts(scenario: Scenario, microbatch: MicrobatchSpec) -> int:
    """Return how many groups of the microbatch's effective size fill the ranks, at least 1."""
    size = microbatch.cp or scenario.parallel.context_parallel_size
    return max(1, scenario.num_ranks // scenario.parallel.tensor_model_parallel_size // size)


def part_of(scenario: Scenario, microbatch: MicrobatchSpec, global_rank: int) -> tuple[int, int]:
    """Return (part, rank in the part's group) of a global rank."""
    size = microbatch.cp or scenario.parallel.context_parallel_size
    # Tensor-parallel ranks are neighbours, as in Megatron's order of ranks.
    return divmod(global_rank // scenario.parallel.tensor_model_parallel_size, size)


def part_spec(microbatch: MicrobatchSpec, part: int) -> MicrobatchSpec:
    """Return the microbatch with the sequences that a part runs."""
    if part == 0 or not microbatch.beside:
        return microbatch
    return replace(microbatch, sequences=microbatch.beside[part - 1])


def own_scenario(scenario: Scenario, global_rank: int) -> Scenario:
    """Return the scenario as a rank runs it: every microbatch with the pack of the rank's part."""
    own = tuple(
        part_spec(microbatch, part_of(scenario, microbatch, global_rank)[0])
        for microbatch in scenario.microbatches
    )
    return replace(scenario, microbatches=own)
