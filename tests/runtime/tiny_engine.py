"""An engine without Megatron: journaled phases, one gloo collective, evidence that satisfies."""

import sys

import torch
import torch.distributed as dist

from harness.record.path import PathEvidence
from harness.record.phase import Phase
from harness.record.selection import OverlapStats, SelectionEvidence
from harness.runtime.journal import Journal
from harness.runtime.task import Task

PHASES = (Phase.BUILD, Phase.LAYOUT, Phase.GATHER, Phase.SCORE, Phase.SELECT, Phase.COMPARE)


def asynchronous(task: Task, journal: Journal) -> None:
    """As ``execute``, with collectives that are issued first and waited for later."""
    execute(task, journal, is_async=True)


def execute(task: Task, journal: Journal, *, is_async: bool = False) -> None:
    """Go through the phases; ranks meet in ``gather``, ``select`` and ``compare``."""
    # Like production: in a group of its own, not in the default group.
    group = journal.group = dist.new_group(list(range(task.world_size)))
    for phase in PHASES:
        journal.phase(phase)
        if phase in (Phase.GATHER, Phase.SELECT, Phase.COMPARE):
            total = torch.ones(8)
            work = dist.all_reduce(total, group=group, async_op=is_async)
            if work is not None:
                work.wait()
            assert total[0].item() == task.world_size
    journal.phase(Phase.RECORD)
    sys.stdout.write(f"rank {task.global_rank} of {task.world_size} done\n")
    for cp_rank in task.cp_ranks or (task.global_rank,):
        for number in range(len(task.scenario.microbatches)):
            for seed in task.scenario.values.seeds:
                _write(task, journal, cp_rank, number, seed)


def _write(task: Task, journal: Journal, cp_rank: int, microbatch: int, seed: int) -> None:
    backend = task.scenario.kernels.dsa_kernel_backend
    place = {
        "global_rank": task.global_rank,
        "cp_rank": cp_rank,
        "microbatch": microbatch,
        "layer": 1,
        "seed": seed,
    }
    journal.evidence(
        PathEvidence(
            **place,
            backend=backend,
            plan=task.scenario.expect.plan or ("none" if backend == "none" else "packed_thd"),
            plan_source="inferred",
            reason="tiny engine",
            scorer="none",
            fused=True,
        )
    )
    journal.evidence(
        SelectionEvidence(
            **place,
            stage="final",
            topk=16,
            reference_dtype="fp32",
            total=OverlapStats(rows=1, due=1, exact=1),
        )
    )
