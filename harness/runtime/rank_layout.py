"""How the ranks of a scenario are laid out over the nodes of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.runtime.place import Place
from harness.runtime.task import Task

STORE_FILE = "store.json"
"""Address of the store of an attempt over several nodes, in its folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeShare:
    """One node's part of a run.

    Attributes:
        workers: Ranks it can take.
        num_cpus: CPUs that its processes may use.
        interface: Network interface towards the other nodes.
    """

    workers: int
    num_cpus: int
    interface: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RankLayout:
    """Ranks in order over the nodes: the first node's workers first.

    Attributes:
        address: Under which every node reaches the first one.
    """

    shares: tuple[NodeShare, ...]
    address: str

    def where(self, global_rank: int) -> tuple[int, int]:
        """Return node and local rank of a rank."""
        local_rank = global_rank
        for node, share in enumerate(self.shares):
            if local_rank < share.workers:
                return node, local_rank
            local_rank -= share.workers
        raise AssertionError(f"rank {global_rank} of {sum(s.workers for s in self.shares)} workers")

    def place(self, tasks: Sequence[Task]) -> tuple[Task, ...]:
        """Give the tasks of a scenario their places; those that fit on one node stay as they are.

        Args:
            tasks: One per rank, in order, laid out for one node.
        """
        spots = [self.where(task.global_rank) for task in tasks]
        num_nodes = len({node for node, _ in spots})
        if num_nodes == 1:
            return tuple(tasks)
        ranks_on = [sum(node == index for node, _ in spots) for index in range(len(self.shares))]
        return tuple(
            replace(
                task,
                local_rank=local_rank,
                store=str(Path(task.folder) / STORE_FILE),
                num_threads=max(1, self.shares[node].num_cpus // ranks_on[node]),
                place=Place(
                    node=node,
                    num_nodes=num_nodes,
                    local_world_size=ranks_on[node],
                    interface=self.shares[node].interface,
                    address=self.address,
                ),
            )
            for task, (node, local_rank) in zip(tasks, spots, strict=True)
        )
