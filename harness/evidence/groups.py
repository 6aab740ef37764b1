"""Group evidence: sizes and ranks by which a forward went, from the calls that the hooks saw."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from harness.evidence.observation import observe_scorer
from harness.kernels.wrapping import unwrap
from harness.production.groups import configured_group
from harness.production.recorder import HookCall, Recorder
from harness.record.groups import GroupMoment, GroupUse

Ranks = tuple[int, ...]
"""Global ranks of a group, in its order; empty for no group."""


def watch_groups(recorder: Recorder) -> None:
    """Keep of each rotary embedding its group alone: there are several in every layer."""
    recorder.reducers["rotary"] = _slim


def _slim(call: HookCall) -> None:
    call.arguments = {"cp_group": call.arguments.get("cp_group")}
    call.result = None


def ranks_of(group: Any) -> Ranks:
    """Return the global ranks of a group."""
    return () if group is None else tuple(dist.get_process_group_ranks(group))


def group_uses(
    calls: Iterable[HookCall], tp_group: Any, *, replay: bool = False
) -> Iterator[GroupUse]:
    """Yield every distinct use of a group among the calls, in order.

    Args:
        calls: Calls of a forward, or those that backward made again.
        tp_group: Tensor-parallel group, whose gathers are another matter.
        replay: Whether backward made the calls.
    """
    calls = list(calls)
    seen: dict[tuple[str, int, int | None, int], None] = {}
    for call in calls:
        for what, size, rank in _of_call(call, tp_group):
            seen.setdefault((what, size, rank, call.layer))
    for layer in sorted({call.layer for call in calls}):
        scored = _scored_size(calls, layer)
        if scored is not None:
            seen.setdefault(("scoring", scored, None, layer))
    for what, size, rank, layer in seen:
        yield GroupUse(what=what, size=size, rank=rank, layer=layer, replay=replay)


def _of_call(call: HookCall, tp_group: Any) -> Iterator[tuple[str, int, int | None]]:
    arguments = call.arguments
    if call.symbol == "rotary":
        # Without a group Megatron's rotary embedding takes the configured one.
        group = arguments.get("cp_group") or configured_group()
        yield "rotary", group.size(), group.rank()
    elif call.symbol == "gather":
        group = arguments.get("group")
        if group is not None and (group is not tp_group or tp_group.size() == 1):
            yield "gather", group.size(), group.rank()
    elif call.symbol in _PARTITIONS and not call.caller.startswith(_BUILDER):
        yield "partition", int(arguments["cp_size"]), int(arguments["cp_rank"])
    elif call.symbol == "bounds":
        yield "bounds", int(arguments["cp_size"]), int(arguments["cp_rank"])


_PARTITIONS = (
    "layout_tables",
    "layout_tables_host",
    "local_positions",
    "local_positions_host",
)


_BUILDER = "build_packed"
"""What the names of the builders begin with; they ask for the rows of every rank in turn."""


def _scored_size(calls: list[HookCall], layer: int) -> int | None:
    """Keys that were scored for each key of this rank's own; None where nothing was scored."""
    indexer = [c for c in calls if c.symbol == "indexer" and c.layer == layer and c.returned]
    observation = observe_scorer(Recorder(calls=calls), layer)
    if not indexer or observation is None:
        return None
    own = unwrap(indexer[-1].result[1]).size(0)
    return observation.k.size(1) // own if own and observation.k.size(1) % own == 0 else None


def held_groups(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the context-parallel group of every collection that parts of a module hold."""
    seen: set[int] = set()
    for path, part in module.named_modules():
        collection = getattr(part, "pg_collection", None)
        if collection is None or id(collection) in seen or not hasattr(collection, "cp"):
            continue
        seen.add(id(collection))
        yield f"{path}.pg_collection.cp".lstrip("."), collection.cp


def group_moments(module: torch.nn.Module, when: str, due: Any) -> Iterator[GroupMoment]:
    """Look at the groups that the layers hold, against the one that the caller had set."""
    for holder, group in held_groups(module):
        yield GroupMoment(when=when, holder=holder, ranks=ranks_of(group), due=ranks_of(due))
