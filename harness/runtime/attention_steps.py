"""Forward and backward of one microbatch at level ``attention``, together or with others between.

What belongs to a microbatch (calls, planted faults, logged loss, state before it) is put aside
between its two steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from harness.evidence.groups import group_moments
from harness.evidence.replay import Replays
from harness.evidence.trained_call import TrainedCall
from harness.production.groups import Groups
from harness.production.indexer_log import clear_log, put_log, take_log
from harness.production.recorder import HookCall, Recorder
from harness.record.groups import BACKWARD, FORWARD, GroupMoment
from harness.record.phase import Phase
from harness.runtime.attention_run import AttentionRun
from harness.runtime.cases import Case, begin, kernels, site_of

_OF_A_CASE = ("calls", "findings", "messages", "transforms", "dressers", "forwards")
"""Attributes of the recorder that belong to one microbatch."""


@dataclass(kw_only=True, slots=True)
class Held:
    """One microbatch between the beginning of its forward and its verdict.

    Attributes:
        inputs: Local inputs, leaves of the graph where it trains.
        output: Of the forward, None before it.
        replays: Calls of the forward, and those that backward made again.
        moments: What groups the layers held behind forward and backward.
        log: What the forward left in the build's loss tracker.
        recorded: The recorder's own of this microbatch, while others run.
    """

    case: Case
    groups: Groups
    inputs: dict[str, torch.Tensor]
    up_v: torch.Tensor
    output: torch.Tensor | None = None
    upstream: torch.Tensor | None = None
    replays: Replays | None = None
    moments: list[GroupMoment] = field(default_factory=list)
    log: dict[str, Any] = field(default_factory=dict)
    before: Any = None
    recorded: dict[str, Any] = field(default_factory=dict)

    def look(self, run: AttentionRun, when: str) -> None:
        """Note what groups the layers hold."""
        configured = run.store.configured.configured_cp
        self.moments += group_moments(run.attention, when, configured)

    def trained(self, recorder: Recorder) -> Recorder:
        """A recorder with the calls that gradients flowed through."""
        if self.replays is None or not self.replays.counts:
            return recorder
        return self.replays.trained(recorder)


def hold(run: AttentionRun, case: Case) -> Held:
    """Begin a microbatch: its inputs, an empty recorder and its planted faults."""
    groups = run.groups_of(case)
    begin(run.stage, case, groups.cp_rank, planted=run.role.planted)
    clear_log()
    held = Held(case=case, groups=groups, inputs=run.inputs(case), up_v=run.up_v)
    if run.trains(case):
        _with_gradients(run, held)
    elif case.spec.forward_only:
        run.module.eval()
    return held


def _with_gradients(run: AttentionRun, held: Held) -> None:
    run.module.train()
    for tensor in held.inputs.values():
        tensor.requires_grad_(True)
    held.up_v = run.up_v.detach().clone().requires_grad_(True)


def hold_again(run: AttentionRun, case: Case) -> Held:
    """Take up a microbatch for a further training of it, beside what was recorded."""
    held = Held(case=case, groups=run.groups_of(case), inputs=run.inputs(case), up_v=run.up_v)
    _with_gradients(run, held)
    return held


def run_whole(run: AttentionRun, held: Held) -> None:
    """Run forward, and backward where the microbatch trains, with nothing in between."""
    with kernels(run.stage, held.case):
        _forward(run, held)
        if run.trains(held.case):
            _backward(run, held)


def run_forward(run: AttentionRun, held: Held) -> None:
    """Run forward and put the microbatch aside until its backward."""
    with kernels(run.stage, held.case):
        _forward(run, held)
    held.log = take_log()
    held.before = run.stage.watched.before
    recorder = run.stage.recorder
    held.recorded = {name: getattr(recorder, name) for name in _OF_A_CASE}
    # Planting the next one's faults empties it in place.
    held.recorded["transforms"] = dict(recorder.transforms)
    held.recorded["dressers"] = dict(recorder.dressers)


@contextlib.contextmanager
def taken_up(run: AttentionRun, held: Held) -> Iterator[None]:
    """Have recorder and tracker be those of a microbatch that was put aside."""
    stage, recorder = run.stage, run.stage.recorder
    latest = {name: getattr(recorder, name) for name in _OF_A_CASE}
    before = stage.watched.before
    for name, value in held.recorded.items():
        setattr(recorder, name, value)
    stage.watched.before = held.before
    stage.gradients.aim(replace(site_of(stage, held.case, held.groups.cp_rank), layer=0))
    clear_log()
    put_log(held.log)
    try:
        yield
    finally:
        for name, value in latest.items():
            setattr(recorder, name, value)
        stage.watched.before = before


def run_backward(run: AttentionRun, held: Held) -> None:
    """Run backward of a microbatch that has been taken up again."""
    with kernels(run.stage, held.case):
        _backward(run, held)


def _forward(run: AttentionRun, held: Held) -> None:
    case, recorder = held.case, run.stage.recorder
    trains = run.trains(case)
    with torch.set_grad_enabled(trains), run.group_set(held.groups):
        held.output = run.attend(case, held.inputs, held.up_v)
    held.look(run, FORWARD)
    held.replays = Replays(forward=list(recorder.calls))
    if trains:
        held.upstream = run.upstream(case)


def _backward(run: AttentionRun, held: Held) -> None:
    recorder = run.stage.recorder
    assert held.output is not None
    assert held.replays is not None
    run.module.zero_grad(set_to_none=True)
    start = len(recorder.calls)
    run.stage.journal.phase(Phase.BACKWARD)
    # A plain tensor's backward: that of a dressed one takes the dress off everything inside it.
    output = held.output.as_subclass(torch.Tensor)
    with run.group_set(held.groups):
        torch.autograd.backward([output], [held.upstream])
    held.look(run, BACKWARD)
    held.replays.take(recorder, start)


def keep_gradients(recorder: Recorder) -> None:
    """Have what the indexer hands on keep its gradients, whenever a graph is built."""
    recorder.reducers["indexer"] = _keep


def _keep(call: HookCall) -> None:
    if torch.is_grad_enabled():
        for tensor in call.result:
            if tensor.requires_grad:
                tensor.retain_grad()


def trained_call(run: AttentionRun, held: Held) -> TrainedCall:
    """Return the tensors of a microbatch whose backward has run."""
    assert held.output is not None
    return TrainedCall(
        query=held.inputs["query"],
        key=held.inputs["key"],
        indexer=held.trained(run.stage.recorder).of("indexer")[-1].result,
        output=held.output,
        upstream=held.upstream,
        up_v=held.up_v,
        hidden=held.inputs["x"],
        low_rank=held.inputs["qr"],
        parameters=dict(run.attention.indexer.named_parameters()),
    )
