"""Graph readiness of a case: construction, warnings, blockers, and capture where there is a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from harness.evidence.graphs import blockers, replay_evidence
from harness.evidence.launches import Launched, launched
from harness.layout import Pack
from harness.production.given_params import copy_params, params_given
from harness.production.graphs import (
    CudaGraphs,
    GraphDevice,
    construct,
    missing_for_capture,
    warnings_due,
)
from harness.production.packs import packed_seq_params
from harness.record.graphs import CAPTURED, FAILED, NOT_RUN, GraphEvidence, GraphReplay
from harness.record.transfers import TransferEvidence
from harness.runtime.cases import Case, kernels, site_of
from harness.runtime.engine import Stage
from harness.runtime.launch import Launch
from harness.scenario.rules.lengths import build_pack


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """What became of a capture."""

    status: str
    reason: str = ""
    replays: tuple[GraphReplay, ...] = ()


def graph_record(
    stage: Stage, case: Case, launch: Launch, transfers: list[TransferEvidence]
) -> GraphEvidence:
    """Describe the graph readiness of a case whose eager forward has ended well."""
    scenario = stage.task.scenario
    graph, site = scenario.graph, site_of(stage, case, launch.cp_rank)
    built = construct(scenario, modelled=stage.source.modelled)
    capture = _capture(stage, case, launch) if built.constructs else Capture(status=NOT_RUN)
    whole = graph.cuda_graph_impl == "full_iteration"
    return GraphEvidence(
        global_rank=site.global_rank,
        cp_rank=site.cp_rank,
        microbatch=site.microbatch,
        seed=site.seed,
        backend=scenario.kernels.dsa_kernel_backend,
        impl=graph.cuda_graph_impl,
        modules=() if whole else graph.cuda_graph_modules,
        dynamic_cp=scenario.parallel.dynamic_context_parallel,
        cp_size=case.pack.cp_size,
        constructs=built.constructs,
        refusal=built.refusal,
        warnings=built.warnings,
        warnings_due=warnings_due(scenario),
        eager=True,
        blockers=tuple(blockers(transfers)),
        capture=capture.status,
        reason=capture.reason or built.refusal,
        replays=capture.replays,
    )


def _capture(stage: Stage, case: Case, launch: Launch) -> Capture:
    impl = stage.task.scenario.graph.cuda_graph_impl
    if impl == "none":
        return Capture(status=NOT_RUN, reason="cuda_graph_impl none captures nothing")
    if not case.packed:
        return Capture(status=NOT_RUN, reason="only packed batches are captured")
    missing = missing_for_capture(impl)
    if missing:
        return Capture(status=NOT_RUN, reason=f"missing {missing}")
    return capture_case(stage, case, launch, CudaGraphs())


def capture_case(stage: Stage, case: Case, launch: Launch, device: GraphDevice) -> Capture:
    """Capture the forward of a case and replay it with other packs of the same capacity."""
    params = packed_seq_params(case.pack)
    inputs = {name: tensor.detach().clone() for name, tensor in launch.inputs.items()}
    with _apart(stage), kernels(stage, case), torch.no_grad(), params_given(params):
        try:
            _result, replay = device.capture(lambda: launch.forward(case, inputs))
        except Exception as error:  # noqa: BLE001 (what a capture stops at is the finding)
            return Capture(status=FAILED, reason=f"{type(error).__name__}: {error}")
        calls = stage.recorder.calls
        replays = []
        for number, pack in enumerate(_other_packs(case, stage.task.scenario.graph.replays)):
            copy_params(params, _fresh(pack))
            for name in launch.rows:
                inputs[name].copy_(launch.inputs[name].roll(number, launch.rows[name]))
            stage.recorder.calls = calls
            replay()
            found = launched(stage.recorder)
            eager = _eager(stage, replace(case, pack=pack), launch, inputs)
            replays.append(replay_evidence(pack.q_padded, eager, found))
    return Capture(status=CAPTURED, replays=tuple(replays))


def _fresh(pack: Pack) -> object:
    with params_given(None):
        return packed_seq_params(pack)


def _eager(
    stage: Stage, case: Case, launch: Launch, inputs: dict[str, torch.Tensor]
) -> dict[int, Launched]:
    stage.recorder.clear()
    with params_given(None):
        launch.forward(case, inputs)
    return launched(stage.recorder)


def _other_packs(case: Case, count: int) -> Iterator[Pack]:
    """The same sequences in other orders, the case's own first: equal capacity, other bounds."""
    spec, order = case.spec, list(range(case.pack.num_sequences))
    for turn in range(count):
        turned = order[turn % len(order) :] + order[: turn % len(order)]
        changed = replace(
            spec,
            sequences=tuple(case.pack.q_lengths[i] for i in turned),
            padded=tuple(case.pack.q_padded[i] for i in turned),
            kv_sequences=None,
        )
        yield build_pack(changed, case.pack.cp_size)


@contextlib.contextmanager
def _apart(stage: Stage) -> Iterator[None]:
    """Record captures and replays apart from the case."""
    recorder = stage.recorder
    kept = recorder.calls, recorder.findings
    recorder.clear()
    try:
        yield
    finally:
        recorder.calls, recorder.findings = kept
