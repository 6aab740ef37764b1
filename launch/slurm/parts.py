"""Scenarios dealt out to allocations: few jobs, each with as many nodes as its scenarios need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.scenario.spec import Scenario

START_S = 90.0
"""What an allocation costs before its first scenario: imports, rendezvous, canary."""
PER_SCENARIO_S = 2.0
"""What a scenario costs beside its own limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Scenarios that run one after the other in one allocation.

    Attributes:
        number: Place among all parts of a submission, from 0.
        nodes: Nodes of its allocation.
        most_s: Upper bound of its time, from the scenarios' own limits.
    """

    number: int
    nodes: int
    ids: tuple[str, ...]
    most_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Parts of equal size: one sbatch call, as a job or as an array.

    Attributes:
        throttle: Array elements that run at the same time, None for no limit.
    """

    nodes: int
    parts: tuple[Part, ...]
    throttle: int | None = None

    @property
    def is_array(self) -> bool:
        """True where there is more than one part."""
        return len(self.parts) > 1


def nodes_needed(scenario: Scenario, ranks_per_node: int) -> int:
    """Return the nodes that a scenario's ranks fill."""
    return math.ceil(scenario.num_ranks / ranks_per_node)


def deal(
    scenarios: Sequence[Scenario],
    *,
    ranks_per_node: int,
    parts_per_group: int = 1,
    throttle: int | None = None,
) -> tuple[Group, ...]:
    """Group scenarios by the nodes they need, in their order, largest groups' nodes last.

    Args:
        scenarios: What shall run.
        ranks_per_node: Ranks of a node.
        parts_per_group: Array elements that a group is dealt out to.
        throttle: See ``Group``.
    """
    by_nodes: dict[int, list[Scenario]] = {}
    for scenario in scenarios:
        by_nodes.setdefault(nodes_needed(scenario, ranks_per_node), []).append(scenario)
    groups = []
    number = 0
    for nodes in sorted(by_nodes):
        members = by_nodes[nodes]
        count = min(parts_per_group, len(members))
        parts = []
        for place in range(count):
            dealt = members[place::count]
            parts.append(
                Part(
                    number=number,
                    nodes=nodes,
                    ids=tuple(scenario.id for scenario in dealt),
                    most_s=START_S + sum(s.limits.time_s + PER_SCENARIO_S for s in dealt),
                )
            )
            number += 1
        groups.append(Group(nodes=nodes, parts=tuple(parts), throttle=throttle))
    return tuple(groups)


def node_hours(groups: Sequence[Group]) -> float:
    """Return an upper bound of the node-hours of a submission."""
    return sum(part.nodes * part.most_s for group in groups for part in group.parts) / 3600.0
