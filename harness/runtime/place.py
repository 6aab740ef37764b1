"""Where a rank sits when the ranks of a scenario are on several nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A rank's node, and what it must know to meet the ranks on others.

    Attributes:
        node: Index of the node in the run, 0 for the one of rank 0.
        num_nodes: Nodes that the scenario's ranks are on.
        local_world_size: The scenario's ranks on this node, 0 for all of them.
        interface: Network interface for gloo; empty leaves the choice to gloo.
        address: Under which every node reaches the node of rank 0.
    """

    node: int = 0
    num_nodes: int = 1
    local_world_size: int = 0
    interface: str = "lo"
    address: str = ""
