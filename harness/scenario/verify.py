"""What can be said of a scenario without running it: ranks, layout, plan, memory, notes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.layout import Pack, rank_segments, released_plan_0192, valid_rows
from harness.scenario.memory import MemoryEstimate, estimate
from harness.scenario.names import TABLE_WRAPPERS, TOP_K_MAX
from harness.scenario.rules.expectations import loss_mode, right_plan
from harness.scenario.rules.finding import effective_cp
from harness.scenario.rules.lengths import build_pack
from harness.scenario.spec import MicrobatchSpec, Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlan:
    """The rows of one logical CP rank in one microbatch.

    Attributes:
        rows: Local query rows, padding included.
        valid_rows: Of these, real tokens.
        segments: Zigzag segments, the tail among them.
        largest_limit: Keys that the rank's best-sighted row may see.
    """

    cp_rank: int
    rows: int
    valid_rows: int
    segments: int
    largest_limit: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MicrobatchPlan:
    """What one microbatch calls for.

    Attributes:
        plan: Plan of a right build, with ``reason``.
        released: Plan that megatron-core 0.19.2 takes, with ``released_reason``; for the cuDNN
            backend only.
        keys: Gathered keys of each rank.
    """

    index: int
    cp_size: int
    plan: str
    reason: str
    released: str
    released_reason: str
    keys: int
    ranks: tuple[RankPlan, ...]
    memory: MemoryEstimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """All that ``dsa-harness verify --explain`` shows of one scenario."""

    id: str
    content_hash: str
    level: str
    num_ranks: int
    context_parallel_size: int
    tensor_model_parallel_size: int
    peak_bytes_per_rank: int
    microbatches: tuple[MicrobatchPlan, ...]
    notes: tuple[str, ...]


def verify(scenario: Scenario) -> Verification:
    """Work out a scenario that passed the file checks."""
    microbatches = tuple(
        _microbatch(scenario, index, microbatch)
        for index, microbatch in enumerate(scenario.microbatches)
    )
    return Verification(
        id=scenario.id,
        content_hash=scenario.content_hash,
        level=scenario.level,
        num_ranks=scenario.num_ranks,
        context_parallel_size=scenario.parallel.context_parallel_size,
        tensor_model_parallel_size=scenario.parallel.tensor_model_parallel_size,
        peak_bytes_per_rank=max(plan.memory.peak for plan in microbatches),
        microbatches=microbatches,
        notes=tuple(_notes(scenario)),
    )


def _microbatch(scenario: Scenario, index: int, microbatch: MicrobatchSpec) -> MicrobatchPlan:
    cp_size = effective_cp(scenario, microbatch)
    pack = build_pack(microbatch, cp_size)
    right = right_plan(scenario, microbatch)
    released = released_plan_0192(
        qkv_format=microbatch.qkv_format,
        cp_size=cp_size,
        pack=pack if microbatch.qkv_format == "thd" else None,
        key_positions=microbatch.key_positions,
        loss=loss_mode(scenario),
        split_hooks=scenario.level == "scorer" or scenario.model.dsa_indexer_topk_freq > 1,
    )
    batch = len(microbatch.sequences) if microbatch.qkv_format == "sbhd" else 1
    return MicrobatchPlan(
        index=index,
        cp_size=cp_size,
        plan=right.plan,
        reason=right.reason,
        released=released.plan,
        released_reason=released.reason,
        keys=pack.total_k,
        ranks=_ranks(scenario, pack),
        memory=estimate(scenario, rows=pack.rows_per_rank, keys=pack.total_k, batch=batch),
    )


def _ranks(scenario: Scenario, pack: Pack) -> tuple[RankPlan, ...]:
    chosen = scenario.parallel.cp_ranks
    ranks = range(pack.cp_size) if chosen == "all" else [r for r in chosen if r < pack.cp_size]
    valid = valid_rows(pack)
    plans = []
    for cp_rank in ranks:
        segments = rank_segments(pack, cp_rank)
        plans.append(
            RankPlan(
                cp_rank=cp_rank,
                rows=pack.rows_per_rank,
                valid_rows=valid[cp_rank],
                segments=len(segments),
                largest_limit=max((segment.k_length for segment in segments), default=0),
            )
        )
    return tuple(plans)


def _notes(scenario: Scenario) -> Iterator[str]:
    if scenario.level == "kernel":
        call = scenario.kernel_call
        topk = scenario.model.dsa_indexer_topk
        table = f"{call.width(topk)} slots, {call.count(topk)} keys selected by each row"
        if call.wrapper not in TABLE_WRAPPERS:
            table = f"{topk} keys due to each row at most"
        yield (
            f"{call.wrapper} is called on its own: {call.keys} keys, {table}; the plan and the "
            "memory of a whole forward do not apply"
        )
        return
    topk = scenario.model.dsa_indexer_topk
    for index, microbatch in enumerate(scenario.microbatches):
        lengths = microbatch.kv_sequences or microbatch.sequences
        if topk >= max(lengths):
            yield (
                f"microbatches[{index}]: dsa_indexer_topk {topk} reaches the longest sequence "
                f"({max(lengths)} keys), so every row picks all keys it may see and no ranking "
                "is judged"
            )
    if scenario.kernels.dsa_kernel_backend == "none" and topk > TOP_K_MAX:
        yield f"dsa_indexer_topk {topk} is beyond what the fused top-k takes ({TOP_K_MAX})"
    if (
        scenario.kernels.dsa_kernel_backend == "cudnn"
        and scenario.model.dsa_indexer_n_heads
        not in (
            32,
            64,
        )
    ):
        yield (
            f"dsa_indexer_n_heads {scenario.model.dsa_indexer_n_heads} is taken by some "
            "cudnn-frontend releases only; 32 and 64 by all"
        )
    if scenario.level == "scorer":
        yield "logical ranks are shared out among any number of real ranks; there are no gathers"
