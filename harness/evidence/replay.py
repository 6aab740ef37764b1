"""Replay evidence: attention calls that backward made again, held against those of the forward.

Recomputation runs a layer's attention without a graph first, and once more, with one, in backward.
Between the two other microbatches may have run, and the caller's group may be another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from harness.evidence.case_values import Scored
from harness.evidence.launches import Launched, launch_evidence
from harness.evidence.memo import table_requests
from harness.evidence.path import infer_plan
from harness.evidence.sharing import observe_layer
from harness.evidence.trained_call import TrainedCall
from harness.kernels.wrapping import unwrap
from harness.layout import Pack
from harness.production.recorder import HookCall, Recorder
from harness.record.replay import ReplayEvidence
from harness.reference.site import Site
from harness.scenario.spec import Scenario


@dataclass(kw_only=True, slots=True)
class Replays:
    """Calls of one microbatch: those of its forward, and those that backward made again.

    Attributes:
        forward: All calls of the forward, in order.
        again: Calls inside attention that backward made, in order.
        counts: Layer to the number of times its attention was computed again.
    """

    forward: list[HookCall]
    again: list[HookCall] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)

    def take(self, recorder: Recorder, start: int) -> None:
        """Move what backward computed again out of the recorder's calls.

        Kernels of backward itself stay, so that what is counted there is one forward and one
        backward.

        Args:
            recorder: Holds the calls.
            start: Number of calls that were there before backward.
        """
        kept, inside = recorder.calls[:start], -1
        for call in recorder.calls[start:]:
            if inside >= 0 and call.depth <= inside:
                inside = -1
            if inside < 0 and call.symbol == "attention":
                inside = call.depth
                self.counts[call.layer] = self.counts.get(call.layer, 0) + 1
            (kept if inside < 0 else self.again).append(call)
        recorder.calls = kept

    def trained(self, recorder: Recorder) -> Recorder:
        """A recorder with those calls of each layer that gradients flowed through."""
        once = [call for call in self.forward if call.layer not in self.counts]
        return replace(recorder, calls=[*once, *self.again])


def watch_trained(recorder: Recorder) -> dict[int, TrainedCall]:
    """Keep the gradients of what goes into and comes out of each layer's attention.

    Returns:
        Filled as attention runs with a graph: in the forward, or where it is computed again.
    """
    calls: dict[int, TrainedCall] = {}

    def keep(call: HookCall) -> None:
        if torch.is_grad_enabled():
            calls[call.layer] = _trained_call(recorder, call)

    recorder.reducers["attention"] = keep
    return calls


def unwatch_trained(recorder: Recorder) -> None:
    """Keep no more gradients."""
    recorder.reducers.pop("attention", None)


def _trained_call(recorder: Recorder, call: HookCall) -> TrainedCall:
    indexer = recorder.of("indexer", layer=call.layer)
    module = call.arguments["self"].indexer
    scored: dict[str, Any] = {}
    if indexer and module is not None:
        scored = {
            "indexer": indexer[-1].result,
            "hidden": indexer[-1].arguments["x"],
            "low_rank": indexer[-1].arguments["qr"],
            "parameters": dict(module.named_parameters()),
        }
    trained = TrainedCall(
        query=call.arguments["query"],
        key=call.arguments["key"],
        output=call.result,
        up_v=call.arguments["up_v_weight"],
        **scored,
    )
    for tensor in (trained.query, trained.key, trained.output, trained.up_v, *trained.indexer):
        if tensor.requires_grad:
            tensor.retain_grad()
    return trained


def replay_evidence(
    replays: Replays, recorder: Recorder, *, scope: str, scenario: Scenario, pack: Pack, site: Site
) -> Iterator[ReplayEvidence]:
    """Compare every layer of a microbatch with its replay.

    Args:
        replays: Calls of the microbatch.
        recorder: Any recorder of the run, for its tables of readers.
        scope: ``microbatch`` or ``step``.
        scenario: What runs.
        pack: Layout of the microbatch.
        site: Rank, microbatch and seed.
    """
    forward = replace(recorder, calls=replays.forward)
    again = replays.trained(recorder)
    backend = scenario.kernels.dsa_kernel_backend
    for layer in sorted({call.layer for call in forward.of("attention")}):
        here = replace(site, layer=layer)
        found = ReplayEvidence(
            **here.fields(),
            scope=scope,
            replays=replays.counts.get(layer, 0),
            group=_group(forward, layer),
            path=infer_plan(forward.counts(layer=layer), backend)[0],
        )
        if found.replays:
            found = replace(
                found,
                replay_group=_group(again, layer),
                replay_path=infer_plan(again.counts(layer=layer), backend)[0],
                **_tables(forward, again, layer),
                **_rows(forward, again, scenario=scenario, pack=pack, site=here),
            )
        yield found


def _group(recorder: Recorder, layer: int) -> str:
    """Ranks over which the layer's keys were gathered."""
    groups = {
        " ".join(str(rank) for rank in dist.get_process_group_ranks(group))
        for call in recorder.of("gather", layer=layer)
        if (group := call.arguments.get("group")) is not None
    }
    return ", ".join(sorted(groups))


def _tables(forward: Recorder, again: Recorder, layer: int) -> dict[str, Any]:
    first, other = (_served(recorder, layer) for recorder in (forward, again))
    different = [
        name
        for name in sorted({*first, *other})
        if len(first.get(name, [])) != len(other.get(name, []))
        or not all(map(torch.equal, first[name], other[name]))
    ]
    return {"tables": sum(map(len, first.values())), "tables_different": tuple(different)}


def _served(recorder: Recorder, layer: int) -> dict[str, list[torch.Tensor]]:
    """Layout tables that a layer was served, by what it asked for, built or kept alike."""
    found: dict[str, list[torch.Tensor]] = {"layout tables": [], "key reorder": [], "bounds": []}
    for call, _inner in table_requests(recorder):
        if call.layer == layer:
            found["layout tables"] += _leaves(call.result)
    for call in recorder.calls:
        if call.layer == layer and call.returned:
            if call.symbol == "zigzag_reorder":
                found["key reorder"] += _leaves(call.result)
            elif call.symbol == "bounds" and call.result[1] is not None:
                found["bounds"] += _leaves(call.result[1])
    return found


def _leaves(tables: Any) -> list[torch.Tensor]:
    parts = tables if isinstance(tables, (tuple, list)) else (tables,)
    return [unwrap(part) for part in parts if isinstance(part, torch.Tensor)]


def _rows(
    forward: Recorder, again: Recorder, *, scenario: Scenario, pack: Pack, site: Site
) -> dict[str, Any]:
    source = scenario.model.source_layer(site.layer)
    first, other = (_launched(recorder, site.layer, source) for recorder in (forward, again))
    if first is None or other is None:
        return {}
    found = launch_evidence("", first, other, scenario=scenario, pack=pack, site=site)
    return {
        "rows": found.rows,
        "rows_different": found.rows_different,
        "rows_tied": found.rows_tied,
        "first_different": found.first_different,
    }


def _launched(recorder: Recorder, layer: int, source: int) -> Launched | None:
    seen = observe_layer(recorder, layer, source)
    if seen is None:
        return None
    scored = Scored(q=seen.q, k=seen.k, weights=seen.weights)
    return Launched(picks=seen.picks, scored=scored, output=None, calls=0)
