"""Process groups: Megatron's own for production, a separate one for harness traffic."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection

from harness.scenario.spec import ParallelSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Groups:
    """Groups of one rank.

    Attributes:
        collection: Megatron's tensor- and context-parallel groups.
        harness_cp: Harness traffic over the same ranks as the context-parallel group; production
            groups never carry it.
    """

    collection: Any
    harness_cp: Any
    cp_size: int
    cp_rank: int
    tp_size: int
    tp_rank: int


@contextmanager
def model_parallel(parallel: ParallelSpec) -> Iterator[Groups]:
    """Initialise Megatron's model parallelism over the current world, and take it down again."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=parallel.tensor_model_parallel_size,
            context_parallel_size=parallel.context_parallel_size,
        )
    try:
        collection = ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp", "cp"])
        yield Groups(
            collection=collection,
            harness_cp=_harness_group(collection.cp),
            cp_size=collection.cp.size(),
            cp_rank=collection.cp.rank(),
            tp_size=collection.tp.size(),
            tp_rank=collection.tp.rank(),
        )
    finally:
        parallel_state.destroy_model_parallel()


def _harness_group(cp_group: Any) -> Any:
    """Create the harness group beside ``cp_group``; every rank creates all of them in order."""
    mine = dist.get_process_group_ranks(cp_group)
    all_groups: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_groups, mine)
    own = None
    for ranks in sorted({tuple(ranks) for ranks in all_groups}):
        group = dist.new_group(list(ranks), backend="gloo", group_desc="HARNESS_CP")
        if list(ranks) == mine:
            own = group
    assert own is not None, "every rank belongs to its own context-parallel group"
    return own


def gather_rows(local: torch.Tensor, groups: Groups) -> list[torch.Tensor]:
    """Gather equally shaped tensors of the context-parallel ranks on the harness's own group.

    Args:
        local: ``[rows, ...]`` of this rank, outside any graph.
        groups: Groups of this rank.

    Returns:
        One tensor per rank, in rank order.
    """
    local = local.contiguous()
    parts = [torch.empty_like(local) for _ in range(groups.cp_size)]
    dist.all_gather(parts, local, group=groups.harness_cp)
    return parts
