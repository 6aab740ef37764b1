"""Runs one scenario on one rank: activate the build, install hooks and kernels, run its level."""

from __future__ import annotations

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.evidence.windows import watch_windows
from harness.kernels.certificates import certified_text
from harness.overlays import OverlayRefusedError, overlaid
from harness.production.autograd import GradientWatch
from harness.production.backend import CUDA_BRANCHES, KernelSource, kernel_source
from harness.production.diagnostics import messages_kept
from harness.production.errors import CapabilityMissingError
from harness.production.hooks import installed
from harness.production.locate import MegatronBuild, activate, find_build
from harness.production.perturb import Perturbation
from harness.production.probes import build_facts
from harness.production.recorder import Recorder
from harness.production.shims import DYNAMIC_CP_SHIMS, RECOMPUTE_SHIMS, Shims, host_shims
from harness.record.evidence import NoteEvidence
from harness.record.phase import Phase
from harness.record.result import FactValue, Proof
from harness.runtime.journal import Journal
from harness.runtime.judge import MISSING_CAPABILITY, PROOF
from harness.runtime.task import Task
from harness.runtime.watched import Watched
from harness.scenario.collectors import chosen
from harness.scenario.known import VERSIONED, fact_disagreements
from harness.scenario.spec import Scenario


def execute(task: Task, journal: Journal) -> None:
    """Run the task's scenario and write its evidence to the journal.

    The process group is up already. A missing capability is an answer: it is journaled and the
    rank ends normally.
    """
    try:
        with warnings.catch_warnings():
            # Megatron and torch warn of absent optional packages and of their own deprecations.
            warnings.simplefilter("ignore")
            _execute(task, journal)
    except CapabilityMissingError as missing:
        journal.evidence(NoteEvidence(topic=MISSING_CAPABILITY, text=missing.capability))
    except OverlayRefusedError as refused:
        journal.evidence(NoteEvidence(topic=MISSING_CAPABILITY, text=str(refused)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What a level needs to run a scenario on this rank.

    Attributes:
        evidence: Optional collectors that run, names of ``harness.scenario.collectors``.
        watched: What the collectors look at between cases.
        perturbation: Breaks a fact of the production call, where the scenario asks for it.
        gradients: Counts what the build's autograd functions return from backward.
        facts: Probed facts of the build and the kernels, as the proof holds them.
    """

    task: Task
    journal: Journal
    build: MegatronBuild
    recorder: Recorder
    source: KernelSource
    provider: Any
    provider_name: str
    evidence: frozenset[str] = frozenset()
    watched: Watched = field(default_factory=Watched)
    perturbation: Perturbation = field(default_factory=Perturbation)
    gradients: GradientWatch = field(default_factory=GradientWatch)
    facts: dict[str, FactValue] = field(default_factory=dict)


@functools.cache
def _build(checkout: str | None) -> MegatronBuild:
    """Find the build once in a process: asking a checkout for its state takes a while."""
    return find_build(checkout)


def _execute(task: Task, journal: Journal) -> None:
    journal.phase(Phase.BUILD)
    build = _build(task.megatron)
    activate(build)
    # Imported here: the levels import Megatron, which has to be the build just activated.
    from harness.runtime.levels import run_level

    with _stage(task, journal, build) as stage:
        run_level(stage)


@contextlib.contextmanager
def _stage(task: Task, journal: Journal, build: MegatronBuild) -> Iterator[Stage]:
    """Install shims and hooks, and write the proof of what is active."""
    from harness.production.providers import spec_provider

    attends = task.scenario.level in ("attention", "model")
    source = kernel_source(task.scenario.kernels, attends=attends, allow_mixed=task.allow_mixed)
    # Beside modelled kernels nothing is claimed of a device, and scorers build no layers.
    mixed = task.allow_mixed or task.device == "cpu" or not attends
    provider, provider_name = spec_provider(may_be_local=mixed)
    recorder = Recorder(on_phase=_on_change(journal))
    watch_windows(recorder)
    with contextlib.ExitStack() as stack:
        shims: tuple[str, ...] = ()
        if not torch.cuda.is_available():
            shims = stack.enter_context(host_shims(*_further_shims(task.scenario)))
        if source.modelled:
            shims = (*shims, CUDA_BRANCHES)
        if task.device == "cuda" and task.ranks_per_gpu > 1:
            shims = (*shims, f"{task.ranks_per_gpu} ranks share a GPU: gloo carries their tensors")
        facts = _facts(task, build, source)
        # Below the hooks, so that these see the build as the overlays have made it.
        facts |= stack.enter_context(overlaid(task.scenario.overlays, facts))
        stack.enter_context(installed(recorder, build.version, facts))
        stack.enter_context(messages_kept(recorder))
        evidence = chosen(task.evidence, task.scenario)
        if "memory" in evidence:
            # What the first look at memory sets apart is collected again afterwards.
            stack.callback(gc.unfreeze)
        proof = Proof(
            kernels=source.kernels,
            provider="none" if task.scenario.level == "scorer" else provider_name,
            shims=shims,
            overlays=task.scenario.overlays,
            evidence=evidence,
            facts=facts,
            certified=_certified(source),
        )
        journal.fact(PROOF, proof)
        versions = {name: _text(facts[name]) for name in VERSIONED}
        for sentence in fact_disagreements(facts, versions):
            journal.evidence(NoteEvidence(topic="facts against versions", text=sentence))
        yield Stage(
            task=task,
            journal=journal,
            build=build,
            recorder=recorder,
            source=source,
            provider=provider,
            provider_name=provider_name,
            evidence=frozenset(evidence),
            perturbation=Perturbation(spec=task.scenario.perturb),
            facts=facts,
        )


def _further_shims(scenario: Scenario) -> tuple[Shims, ...]:
    recomputes = scenario.training.recompute != "none"
    dynamic = scenario.parallel.dynamic_context_parallel
    return (RECOMPUTE_SHIMS,) * recomputes + (DYNAMIC_CP_SHIMS,) * dynamic


def _certified(source: KernelSource) -> str:
    if not source.modelled:
        return ""
    return certified_text(str(source.version), str(source.arch))


def _text(value: FactValue) -> str | None:
    return None if value is None else str(value)


def _facts(task: Task, build: MegatronBuild, source: KernelSource) -> dict[str, FactValue]:
    where = "modelled" if source.modelled else "hardware"
    if task.scenario.kernels.dsa_kernel_backend == "none":
        where = "none"
    return {
        **build_facts(build),
        **source.facts,
        "megatron_core": build.version,
        "cudnn_frontend": source.version,
        "arch": source.arch,
        "source": where,
    }


def _on_change(journal: Journal) -> Callable[[Phase], None]:
    """Write a phase line only when the phase changes: layers repeat theirs many times."""

    def on_phase(phase: Phase) -> None:
        if journal.current is not phase:
            journal.phase(phase)

    return on_phase
