"""Process groups: Megatron's own for production, a separate one for harness traffic."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
        harness_tp: The same for the tensor-parallel group, None where that has one rank.
        effective: Group that stands in for the collection's context-parallel one while a microbatch
            runs (see ``entered``), None where that is the configured one.
        grouped: False for a microbatch of size 1 that is given no group at all.
        configured_cp: Group that the layers were built with, whatever the collection holds now.
        dp_size: Data-parallel replicas; above 1 only where fewer ranks run than there are, as when
            a scenario is run again at a smaller CP size.
    """

    collection: Any
    harness_cp: Any
    harness_tp: Any
    cp_size: int
    cp_rank: int
    tp_size: int
    tp_rank: int
    effective: Any = None
    grouped: bool = True
    configured_cp: Any = None
    dp_size: int = 1
    dp_rank: int = 0


@contextmanager
def model_parallel(
    parallel: ParallelSpec, further: Mapping[str, bool] | None = None
) -> Iterator[Groups]:
    """Initialise Megatron's model parallelism over the current world, and take it down again.

    Args:
        parallel: Configured sizes.
        further: Further arguments, such as those of ``harness.production.dynamic_cp``.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=parallel.tensor_model_parallel_size,
            context_parallel_size=parallel.context_parallel_size,
            # Second groups for optimizer state and checkpoints, which no scenario has.
            create_gloo_process_groups=False,
            **(further or {}),
        )
    try:
        collection = ProcessGroupCollection.use_mpu_process_groups(required_pgs=["tp", "cp"])
        yield Groups(
            collection=collection,
            harness_cp=_harness_group(collection.cp, "HARNESS_CP"),
            harness_tp=(
                _harness_group(collection.tp, "HARNESS_TP") if collection.tp.size() > 1 else None
            ),
            cp_size=collection.cp.size(),
            cp_rank=collection.cp.rank(),
            tp_size=collection.tp.size(),
            tp_rank=collection.tp.rank(),
            configured_cp=collection.cp,
            dp_size=parallel_state.get_data_parallel_world_size(),
            dp_rank=parallel_state.get_data_parallel_rank(),
        )
    finally:
        parallel_state.destroy_model_parallel()


def configured_group() -> Any:
    """Return the context-parallel group that Megatron was initialised with."""
    return parallel_state.get_context_parallel_group()


def effective_groups(groups: Groups, size: int) -> Groups:
    """Return the groups of a microbatch that runs on a part of the ranks.

    Neighbouring ranks of a tensor-parallel shard make a part, over data-parallel replicas too; all
    parts run side by side. Every rank creates all of them, in one order.

    Args:
        groups: The configured groups.
        size: Effective CP size, a divisor of the ranks of a shard.
    """
    own: list[Any] = []
    rank, part = 0, 0
    for shard in range(groups.tp_size):
        ranks = list(range(shard, dist.get_world_size(), groups.tp_size))
        for start in range(0, len(ranks), size):
            members = ranks[start : start + size]
            made = [
                dist.new_group(members, backend=backend, group_desc=description)
                for backend, description in (
                    (dist.get_backend(groups.collection.cp), _EFFECTIVE),
                    ("gloo", "HARNESS_CP"),
                )
            ]
            if dist.get_rank() in members:
                own, rank, part = made, members.index(dist.get_rank()), start // size
    return replace(
        groups,
        effective=own[0],
        harness_cp=own[1],
        cp_size=size,
        cp_rank=rank,
        dp_size=1,
        dp_rank=part,
    )


_EFFECTIVE = "EFFECTIVE_CONTEXT_PARALLEL_GROUP"


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupStore:
    """Groups of every effective size of a scenario, created before its first microbatch.

    Attributes:
        configured: Those that the layers are built with.
        by_size: Effective size to the groups of this rank's part.
    """

    configured: Groups
    by_size: dict[int, Groups]

    def of(self, size: int, *, grouped: bool = True) -> Groups:
        """Return the groups of a microbatch.

        Args:
            size: Its effective CP size.
            grouped: False where size 1 means no group.
        """
        found = self.by_size.get(size, self.configured)
        return found if grouped else replace(found, grouped=False)

    @property
    def sizes(self) -> dict[int, int]:
        """Size that each group is stored under, with the number of ranks it really has."""
        return {
            size: dist.get_world_size(groups.effective) for size, groups in self.by_size.items()
        }


def group_store(configured: Groups, sizes: Iterable[int]) -> GroupStore:
    """Create the groups of all effective sizes; every rank has to call it alike."""
    return GroupStore(
        configured=configured,
        by_size={size: effective_groups(configured, size) for size in sorted(set(sizes))},
    )


@contextmanager
def entered(groups: Groups) -> Iterator[None]:
    """Set the effective group where the layers look for theirs, and put the configured one back.

    What a caller of a build without Dynamic CP of its own does around a microbatch.
    """
    if groups.effective is None:
        yield
        return
    configured = groups.collection.cp
    groups.collection.cp = groups.effective if groups.grouped else None
    try:
        yield
    finally:
        groups.collection.cp = configured


def _harness_group(group: Any, description: str) -> Any:
    """Create the harness group beside ``group``; every rank creates all of them in order."""
    mine = dist.get_process_group_ranks(group)
    if len(mine) == dist.get_world_size():
        return dist.new_group(mine, backend="gloo", group_desc=description)
    all_groups: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_groups, mine)
    own = None
    for ranks in sorted({tuple(ranks) for ranks in all_groups}):
        created = dist.new_group(list(ranks), backend="gloo", group_desc=description)
        if list(ranks) == mine:
            own = created
    assert own is not None, "every rank belongs to its own group"
    return own


def gather_rows(local: torch.Tensor, groups: Groups) -> list[torch.Tensor]:
    """Gather equally shaped tensors of the context-parallel ranks on the harness's own group.

    Args:
        local: ``[rows, ...]`` of this rank, outside any graph.
        groups: Groups of this rank.

    Returns:
        One tensor per rank, in rank order.
    """
    return _gathered(local, groups.cp_size, groups.harness_cp)


def gather_shards(local: torch.Tensor, groups: Groups, *, dim: int) -> torch.Tensor:
    """Concatenate the shards of the tensor-parallel ranks along ``dim``, on the harness's group."""
    if groups.tp_size == 1:
        return local
    return torch.cat(_gathered(local, groups.tp_size, groups.harness_tp), dim=dim)


def sum_over_ranks(local: torch.Tensor, groups: Groups) -> torch.Tensor:
    """Sum a tensor over the context-parallel ranks in fp64, on the harness's own group."""
    total = local.detach().to(torch.float64, copy=True).contiguous()
    dist.all_reduce(total, group=groups.harness_cp)
    return total


def sum_over_shards(gradient: torch.Tensor, parameter: Any, groups: Groups) -> torch.Tensor:
    """Reduce a parameter's gradient over tensor parallelism as Megatron's training step does.

    By the marks on the parameter (``_allreduce_non_tensor_model_parallel_grads``): one that every
    rank computes in full is averaged, one that saw a rank's share of the rows is summed, and one
    that is split over ranks is left alone.
    """
    averaged = getattr(parameter, "average_gradients_across_tp_domain", False)
    if groups.tp_size == 1 or not (averaged or getattr(parameter, "sequence_parallel", False)):
        return gradient
    total = gradient.detach().to(torch.float64, copy=True).contiguous()
    dist.all_reduce(total, group=groups.harness_tp)
    return total / groups.tp_size if averaged else total


def _gathered(local: torch.Tensor, size: int, group: Any) -> list[torch.Tensor]:
    local = local.contiguous()
    parts = [torch.empty_like(local) for _ in range(size)]
    dist.all_gather(parts, local, group=group)
    return parts
