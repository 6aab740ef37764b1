"""Further forwards of a case that has run, for collectors that need one of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from harness.evidence.copies import CudaCopies, copy_evidence
from harness.evidence.run_plants import EVERYWHERE
from harness.evidence.timing import timing_evidence
from harness.evidence.transfers import transfer_evidence
from harness.production import look_alike
from harness.production.backend import kernels_installed
from harness.production.placement import metadata_on
from harness.production.recorder import Recorder
from harness.production.transfers import (
    LayerClock,
    Traffic,
    device_traffic,
    look_alike_traffic,
)
from harness.record.copies import CopyEvidence
from harness.record.evidence import Evidence
from harness.record.phase import Phase
from harness.record.timing import TimingEvidence
from harness.record.transfers import TransferEvidence
from harness.runtime.cases import Case, kernels, site_of
from harness.runtime.engine import Stage
from harness.runtime.graph_records import graph_record
from harness.runtime.launch import Launch
from harness.runtime.repeats import repeat_records

__all__ = ["Launch", "further_evidence"]


def further_evidence(stage: Stage, case: Case, launch: Launch) -> None:
    """Run a case again for each collector that needs it, and write what was seen.

    Values of other seeds take no other path, so the first seed stands for all.
    """
    if case.seed != stage.task.scenario.values.seeds[0]:
        return
    evidence: list[Evidence] = []
    if "invariance" in stage.evidence:
        evidence += repeat_records(stage, case, launch)
    if "copies" in stage.evidence and case.index == 0:
        evidence += _copies(stage, case)
    if "timing" in stage.evidence:
        evidence += _timings(stage, case, launch)
    if {"transfers", "graphs"} & stage.evidence:
        transfers = _transfers(stage, case, launch)
        evidence += transfers
        if "graphs" in stage.evidence:
            evidence.append(graph_record(stage, case, launch, transfers))
    if evidence:
        stage.journal.phase(Phase.RECORD)
    for record in evidence:
        stage.journal.evidence(record)


def _copies(stage: Stage, case: Case) -> list[CopyEvidence]:
    """Measure copies of the layout tables of the first pack, one rank at its own device."""
    on_gpu = stage.task.device == "cuda"
    return list(
        copy_evidence(
            case.pack.q_lengths,
            CudaCopies() if on_gpu else None,
            global_rank=stage.task.global_rank,
            why_not="" if on_gpu else "missing usable GPU",
        )
    )


def _timings(stage: Stage, case: Case, launch: Launch) -> list[TimingEvidence]:
    """Measure the phases of the forward, on a device with its end waited for at each change."""
    on_gpu = stage.task.device == "cuda"
    used = "torch" if stage.task.scenario.kernels.dsa_kernel_backend == "none" else "hardware"
    with _kept_apart(stage.recorder), kernels(stage, case), torch.no_grad():
        return list(
            timing_evidence(
                lambda: launch.forward(case, launch.inputs),
                stage.recorder,
                site_of(stage, case, launch.cp_rank),
                on=stage.task.device,
                kernels="modelled" if stage.source.modelled else used,
                synchronize=torch.cuda.synchronize if on_gpu else _no_device,
            )
        )


def _no_device() -> None:
    """There is nothing to wait for."""


def _transfers(stage: Stage, case: Case, launch: Launch) -> list[TransferEvidence]:
    """Watch a forward; one before it fills the caches that a training step finds filled."""
    recorder = stage.recorder
    on_gpu = stage.task.device == "cuda"
    watch = _device_forward if on_gpu else _look_alike_forward
    with _kept_apart(recorder):
        watch(stage, case, launch)
        recorder.clear()
        traffic = watch(stage, case, launch)
        layers = {call.layer for call in recorder.calls}
    site = site_of(stage, case, launch.cp_rank)
    how = "device" if on_gpu else "look_alike"
    return list(transfer_evidence(traffic, site, how=how, layers=layers))


@contextlib.contextmanager
def _kept_apart(recorder: Recorder) -> Iterator[None]:
    """Record what follows apart from the case, and without what works on plain tensors only."""
    kept = (recorder.calls, recorder.findings, recorder.reducers, recorder.dressers)
    transforms = recorder.transforms
    recorder.clear()
    recorder.reducers, recorder.dressers = {}, {}
    recorder.transforms = {
        symbol: change for symbol, change in transforms.items() if hasattr(change, EVERYWHERE)
    }
    try:
        yield
    finally:
        recorder.calls, recorder.findings, recorder.reducers, recorder.dressers = kept
        recorder.transforms = transforms


@contextlib.contextmanager
def _place(stage: Stage, launch: Launch) -> Iterator[Callable[[], tuple[int, str]]]:
    """Yield what tells layer and phase; without a module there is one layer, and no outside."""
    idle = 1 if launch.module is None else 0
    with LayerClock(layer=idle, idle=idle).over(launch.module) as clock:
        yield lambda: (clock.layer, str(stage.journal.current))


def _look_alike_forward(stage: Stage, case: Case, launch: Launch) -> Traffic:
    scenario = stage.task.scenario
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            kernels_installed(
                scenario.kernels,
                stage.source,
                stage.recorder,
                seed=case.seed,
                overlays=scenario.overlays,
                hook=look_alike.HOOK,
            )
        )
        place = stack.enter_context(_place(stage, launch))
        traffic = stack.enter_context(look_alike_traffic(stage.build.root, place))
        stack.enter_context(look_alike.module_on_device(launch.module))
        stack.enter_context(metadata_on(look_alike.DEVICE))
        stage.journal.phase(Phase.LAYOUT)
        inputs = {name: look_alike.to_device(t) for name, t in launch.inputs.items()}
        launch.forward(case, inputs)
    return traffic


def _device_forward(stage: Stage, case: Case, launch: Launch) -> Traffic:
    scenario = stage.task.scenario
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            kernels_installed(
                scenario.kernels,
                stage.source,
                stage.recorder,
                seed=case.seed,
                overlays=scenario.overlays,
            )
        )
        stack.enter_context(torch.no_grad())
        place = stack.enter_context(_place(stage, launch))
        traffic = stack.enter_context(device_traffic(stage.build.root, place))
        stage.journal.phase(Phase.LAYOUT)
        launch.forward(case, launch.inputs)
    return traffic
