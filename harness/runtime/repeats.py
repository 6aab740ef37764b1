"""Runs a case again in ways that must not change which keys are selected."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from harness.evidence.launches import Launched, launch_evidence, launched
from harness.layout import rank_segments
from harness.production.backend import kernels_installed
from harness.production.recorder import HookCall, Recorder
from harness.record.launches import (
    AGAIN,
    ALONE,
    CHUNKED,
    GRAD,
    INTERRUPTED,
    LAUNCHES,
    LaunchEvidence,
)
from harness.runtime.cases import Case, kernels, site_of
from harness.runtime.engine import Stage
from harness.runtime.launch import Launch
from harness.scenario.rules.lengths import build_pack

_CHUNK_ROWS = 8
"""Rows of a chunk in the chunked launch: a few, so that every half has several."""

_SCORE_BYTES = 4

Layers = dict[int, Launched]
Run = Callable[[Stage, Case, Launch, Layers], Layers]


def repeat_records(stage: Stage, case: Case, launch: Launch) -> list[LaunchEvidence]:
    """Run the launches that the scenario, or ``--evidence``, asks for."""
    scenario = stage.task.scenario
    asked = scenario.compare.launches or tuple(LAUNCHES)
    first = launched(stage.recorder)
    site = site_of(stage, case, launch.cp_rank)
    records: list[LaunchEvidence] = []
    for name in asked:
        why_not = _why_not(name, stage, case, launch)
        if why_not:
            records.append(LaunchEvidence(**site.fields(), launch=name, why_not=why_not))
            continue
        with _aside(stage.recorder):
            other = _RUNS[name](stage, case, launch, first)
        found = [
            launch_evidence(
                name,
                first[layer],
                other[layer],
                scenario=scenario,
                pack=case.pack,
                site=replace(site, layer=layer),
            )
            for layer in first
            if layer in other
        ]
        records += [_if_chunked(record) for record in found]
    return records


def _if_chunked(record: LaunchEvidence) -> LaunchEvidence:
    """A scorer that takes all rows in one call, whatever the budget, says nothing of chunks."""
    if record.launch == CHUNKED and record.calls[0] == record.calls[1]:
        return replace(record, why_not="this scorer makes no chunks of its rows")
    return record


def _why_not(name: str, stage: Stage, case: Case, launch: Launch) -> str:
    if name == CHUNKED and stage.task.scenario.kernels.dsa_kernel_backend != "cudnn":
        return "only the cuDNN caller has a score budget"
    if name == GRAD and launch.module is None:
        return "level scorer has no gradients"
    if name == INTERRUPTED and launch.interrupted is None:
        return "nobody looks at groups here"
    if name != ALONE:
        return ""
    if not case.packed:
        return "an unpacked batch holds no pack"
    if case.pack.num_sequences < 2:
        return "the pack holds one sequence"
    if case.spec.kv_sequences is not None or case.spec.key_positions != "derived":
        return "keys of their own lengths or positions"
    if stage.task.scenario.parallel.sequence_parallel:
        return "sequence parallelism deals the rows out once more"
    return ""


@contextlib.contextmanager
def _aside(recorder: Recorder) -> Iterator[None]:
    """Record a further launch apart from the case."""
    kept = recorder.calls, recorder.findings
    recorder.clear()
    try:
        yield
    finally:
        recorder.calls, recorder.findings = kept


def _again(stage: Stage, case: Case, launch: Launch, _first: Layers) -> Layers:
    if launch.trained is None:
        return _forward(stage, case, launch, grad=stage.task.scenario.training.backward)
    one = launch.trained(case)
    stage.recorder.clear()
    other = launch.trained(case)
    gap = max(float((one[name] - other[name]).abs().max()) for name in one if one[name].numel())
    found = launched(stage.recorder)
    return {layer: replace(layer_found, gap=gap) for layer, layer_found in found.items()}


def _other_grad(stage: Stage, case: Case, launch: Launch, _first: Layers) -> Layers:
    return _forward(stage, case, launch, grad=not stage.task.scenario.training.backward)


def _forward(stage: Stage, case: Case, launch: Launch, *, grad: bool) -> Layers:
    with kernels(stage, case), torch.set_grad_enabled(grad):
        launch.forward(case, launch.inputs)
    return launched(stage.recorder)


def _chunked(stage: Stage, case: Case, launch: Launch, _first: Layers) -> Layers:
    scenario = stage.task.scenario
    budget = _SCORE_BYTES * case.pack.total_k * _CHUNK_ROWS
    small = kernels_installed(
        replace(scenario.kernels, score_chunk_bytes=budget),
        stage.source,
        stage.recorder,
        seed=case.seed,
        overlays=scenario.overlays,
    )
    with small, torch.no_grad():
        launch.forward(case, launch.inputs)
    return launched(stage.recorder)


class InterruptedForwardError(RuntimeError):
    """Ends a forward inside attention, on purpose."""


def _interrupted(stage: Stage, case: Case, launch: Launch, _first: Layers) -> Layers:
    """End a forward behind the gather of keys, on every rank alike, and then run it whole."""
    assert launch.interrupted is not None, "see _why_not"

    def end(_call: HookCall, _result: Any) -> Any:
        raise InterruptedForwardError("provoked inside attention")

    recorder = stage.recorder
    planted = recorder.transforms
    recorder.transforms = {**planted, "bounds": end}
    try:
        with kernels(stage, case), torch.no_grad():
            launch.forward(case, launch.inputs)
    except InterruptedForwardError:
        launch.interrupted()
    finally:
        recorder.transforms = planted
    recorder.clear()
    return _forward(stage, case, launch, grad=stage.task.scenario.training.backward)


def _alone(stage: Stage, case: Case, launch: Launch, first: Layers) -> Layers:
    """Run each sequence that has rows, and put their selections together in the pack's order."""
    pack = case.pack
    merged = {layer: torch.full_like(found.picks, -1) for layer, found in first.items()}
    calls = dict.fromkeys(merged, 0)
    for sequence, length in enumerate(pack.q_padded):
        if not length:
            continue
        spec = replace(
            case.spec, sequences=(pack.q_lengths[sequence],), padded=(length,), tail_padding=0
        )
        alone = replace(case, spec=spec, pack=build_pack(spec, pack.cp_size))
        row, rows = _local_rows(case, launch.cp_rank, sequence)
        start = pack.cu_seqlens_k_padded[sequence]
        stage.recorder.clear()
        with kernels(stage, case), torch.no_grad():
            launch.forward(alone, launch.only((row, rows), (start, pack.k_padded[sequence])))
        for layer, found in launched(stage.recorder).items():
            shifted = torch.where(found.picks >= 0, found.picks + start, found.picks)
            merged[layer][:, row : row + rows, : shifted.size(-1)] = shifted
            calls[layer] += found.calls
    return {
        layer: Launched(picks=picks, scored=first[layer].scored, output=None, calls=calls[layer])
        for layer, picks in merged.items()
    }


def _local_rows(case: Case, cp_rank: int, sequence: int) -> tuple[int, int]:
    """First local row of a sequence, and how many it has on this rank, padding included."""
    segments = [s for s in rank_segments(case.pack, cp_rank) if s.sequence == sequence]
    return segments[0].row_start, sum(segment.q_length for segment in segments)


_RUNS: dict[str, Run] = {
    AGAIN: _again,
    CHUNKED: _chunked,
    GRAD: _other_grad,
    ALONE: _alone,
    INTERRUPTED: _interrupted,
}
