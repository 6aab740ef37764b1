"""The cases of a scenario on one rank: each microbatch under each seed, and what surrounds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from harness.evidence.collect import Subject, collect
from harness.evidence.plants import plant
from harness.layout import Pack
from harness.production.backend import kernels_installed
from harness.production.inputs import InputSource
from harness.record.result import Phase
from harness.reference.rows import rows_of_rank
from harness.reference.site import Site
from harness.runtime.engine import Stage
from harness.runtime.inject import for_rank
from harness.scenario.rules.lengths import build_pack
from harness.scenario.spec import MicrobatchSpec, Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One microbatch under one seed.

    Attributes:
        pack: Layout of the microbatch; for an unpacked batch, of one of its equal sequences.
        sources: Input generators, one per stream of an unpacked batch.
    """

    index: int
    seed: int
    spec: MicrobatchSpec
    pack: Pack
    sources: tuple[InputSource, ...]

    @property
    def packed(self) -> bool:
        """True in THD layout."""
        return self.spec.qkv_format == "thd"


def cases(scenario: Scenario) -> Iterator[Case]:
    """Yield the cases in the order in which they run."""
    for seed in scenario.values.seeds:
        for index, spec in enumerate(scenario.microbatches):
            cp_size = spec.cp or scenario.parallel.context_parallel_size
            streams = 1 if spec.qkv_format == "thd" else len(spec.sequences)
            sources = tuple(
                InputSource(values=scenario.values, seed=seed, microbatch=index, stream=stream)
                for stream in range(streams)
            )
            pack = build_pack(spec, cp_size)
            yield Case(index=index, seed=seed, spec=spec, pack=pack, sources=sources)


def begin(stage: Stage, case: Case, cp_rank: int) -> None:
    """Enter the layout phase of a case with an empty recorder and its planted faults."""
    stage.journal.phase(Phase.LAYOUT)
    stage.recorder.clear()
    task = stage.task
    found = for_rank(task.inject, task.scenario.id, task.global_rank)
    kinds = tuple(item.kind for item in found if not item.is_process_kind)
    plant(stage.recorder, kinds, rows_of_rank(case.pack, cp_rank))


def kernels(stage: Stage, case: Case) -> AbstractContextManager[None]:
    """Install the scenario's kernels for a case."""
    scenario = stage.task.scenario
    return kernels_installed(
        scenario.kernels,
        stage.source,
        stage.recorder,
        seed=case.seed,
        overlays=scenario.overlays,
    )


def site_of(stage: Stage, case: Case, cp_rank: int, *, layer: int = 1) -> Site:
    """Where the evidence of a case belongs; collectors over all layers fill the layer in."""
    return Site(
        global_rank=stage.task.global_rank,
        cp_rank=cp_rank,
        microbatch=case.index,
        layer=layer,
        seed=case.seed,
    )


def conclude_case(stage: Stage, case: Case, cp_rank: int, keys: Mapping[int, torch.Tensor]) -> None:
    """Compare a case with the reference and write its evidence.

    Args:
        stage: The rank's stage.
        case: The case that just ran.
        cp_rank: Rank in its context-parallel group, real or logical.
        keys: Layer to all its indexer keys ``[batch, keys, dim]`` in packed order.
    """
    if stage.journal.current is not Phase.COMPARE:
        stage.journal.phase(Phase.COMPARE)
    site = site_of(stage, case, cp_rank)
    subject = Subject(scenario=stage.task.scenario, pack=case.pack, site=site, keys=keys)
    evidence = list(collect(stage.recorder, subject))
    stage.journal.phase(Phase.RECORD)
    for record in evidence:
        stage.journal.evidence(record)
