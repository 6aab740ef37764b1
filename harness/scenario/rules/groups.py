"""Rules over parallel sizes, effective CP and the ranks that are run."""

from __future__ import annotations

from collections.abc import Iterator

from harness.layout import LayoutError
from harness.scenario.rules.finding import Finding, Rule, effective_cp
from harness.scenario.rules.lengths import build_pack
from harness.scenario.spec import Scenario


def _effective_cp(scenario: Scenario) -> Iterator[Finding]:
    configured = scenario.parallel.context_parallel_size
    largest = max([configured, *(effective_cp(scenario, mb) for mb in scenario.microbatches)])
    for index, microbatch in enumerate(scenario.microbatches):
        if microbatch.cp is None or microbatch.cp == configured:
            continue
        path = ("microbatches", index, "cp")
        if not scenario.parallel.dynamic_context_parallel:
            yield Finding(
                path=path,
                message=f"effective CP {microbatch.cp} differs from context_parallel_size "
                f"{configured}; set parallel.dynamic_context_parallel: true, or remove cp",
            )
        elif largest % microbatch.cp:
            yield Finding(
                path=path,
                message=f"effective CP {microbatch.cp} does not divide the largest CP {largest}, "
                "so its groups would not fill the ranks; use a divisor",
            )


def _cp_ranks(scenario: Scenario) -> Iterator[Finding]:
    ranks = scenario.parallel.cp_ranks
    if ranks == "all":
        return
    if scenario.level != "scorer":
        yield Finding(
            path=("parallel", "cp_ranks"),
            message=f"cp_ranks chooses logical ranks at level scorer only, found level "
            f"{scenario.level}, whose gathers need all ranks; remove it or use level: scorer",
        )
    size = scenario.parallel.context_parallel_size
    for index, rank in enumerate(ranks):
        if rank >= size:
            yield Finding(
                path=("parallel", "cp_ranks", index),
                message=f"rank {rank} is outside context_parallel_size {size}; use 0 to {size - 1}",
            )


def _tensor_parallel(scenario: Scenario) -> Iterator[Finding]:
    parallel = scenario.parallel
    size = parallel.tensor_model_parallel_size
    if parallel.sequence_parallel and size == 1:
        yield Finding(
            path=("parallel", "sequence_parallel"),
            message="sequence_parallel needs tensor_model_parallel_size above 1, found 1; "
            "raise it or set sequence_parallel: false",
        )
    if size > 1 and scenario.level == "scorer":
        yield Finding(
            path=("parallel", "tensor_model_parallel_size"),
            message=f"level scorer has no tensor parallelism, found {size}; use 1, or level "
            "attention or model",
        )


def _sequence_parallel_rows(scenario: Scenario) -> Iterator[Finding]:
    size = scenario.parallel.tensor_model_parallel_size
    if not scenario.parallel.sequence_parallel or size == 1:
        return
    for index, microbatch in enumerate(scenario.microbatches):
        try:
            rows = build_pack(microbatch, effective_cp(scenario, microbatch)).rows_per_rank
        except LayoutError:
            # Reported where the lengths are checked.
            continue
        if rows % size:
            yield Finding(
                path=("microbatches", index, "sequences"),
                message=f"{rows} rows per CP rank are not divisible by tensor_model_parallel_size "
                f"{size}, as sequence_parallel needs; change the lengths or tail_padding",
            )


def _heads(scenario: Scenario) -> Iterator[Finding]:
    size = scenario.parallel.tensor_model_parallel_size
    heads = scenario.model.num_attention_heads
    if heads % size:
        yield Finding(
            path=("model", "num_attention_heads"),
            message=f"{heads} attention heads are not divisible by tensor_model_parallel_size "
            f"{size}; change one of them",
        )


def _comm_type(scenario: Scenario) -> Iterator[Finding]:
    parallel = scenario.parallel
    if (
        scenario.expect.verdict == "pass"
        and parallel.context_parallel_size > 1
        and parallel.cp_comm_type not in ("allgather", "all_gather")
    ):
        yield Finding(
            path=("parallel", "cp_comm_type"),
            message=f"DSA with CP refuses cp_comm_type {parallel.cp_comm_type}; use allgather, or "
            "expect.verdict: refused",
        )


RULES = (
    Rule(
        needs=(
            "microbatches",
            "parallel.context_parallel_size",
            "parallel.dynamic_context_parallel",
        ),
        check=_effective_cp,
    ),
    Rule(needs=("level", "parallel.context_parallel_size", "parallel.cp_ranks"), check=_cp_ranks),
    Rule(
        needs=("level", "parallel.tensor_model_parallel_size", "parallel.sequence_parallel"),
        check=_tensor_parallel,
    ),
    Rule(
        needs=(
            "microbatches",
            "parallel.context_parallel_size",
            "parallel.tensor_model_parallel_size",
            "parallel.sequence_parallel",
        ),
        check=_sequence_parallel_rows,
        each_microbatch=True,
    ),
    Rule(needs=("model.num_attention_heads", "parallel.tensor_model_parallel_size"), check=_heads),
    Rule(
        needs=("parallel.context_parallel_size", "parallel.cp_comm_type", "expect.verdict"),
        check=_comm_type,
    ),
)
