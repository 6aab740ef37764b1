"""The cases of a scenario on one rank: each microbatch under each seed, and what surrounds it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from harness.evidence.collect import Subject, collect
from harness.evidence.plants import plant
from harness.layout import Pack
from harness.production.backend import kernels_installed
from harness.production.boundaries import hand_over
from harness.production.inputs import InputSource
from harness.production.packs import real_rows
from harness.production.third_party import HookCase, ThirdParty
from harness.record.evidence import NEVER_STRUCK, Evidence, NoteEvidence
from harness.record.phase import Phase
from harness.reference.rows import rows_of_rank
from harness.reference.site import Site
from harness.runtime.dumps import dump_records
from harness.runtime.engine import Stage
from harness.runtime.inject import for_rank
from harness.runtime.layout_records import layout_records
from harness.runtime.memory_records import memory_records
from harness.runtime.state_records import look_before, state_records
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


def cases(
    scenario: Scenario, part_of: Callable[[MicrobatchSpec], int] = lambda _spec: 0
) -> Iterator[Case]:
    """Yield the cases in the order in which they run.

    Args:
        scenario: As this rank runs it, see ``harness.scenario.parts.own_scenario``.
        part_of: Returns the part of the ranks that this one belongs to in a microbatch.
    """
    for seed in scenario.values.seeds:
        for index, spec in enumerate(scenario.microbatches):
            cp_size = spec.cp or scenario.parallel.context_parallel_size
            streams = 1 if spec.qkv_format == "thd" else len(spec.sequences)
            # Packs side by side have tokens of their own.
            first = part_of(spec) if spec.beside else 0
            sources = tuple(
                InputSource(values=scenario.values, seed=seed, microbatch=index, stream=stream)
                for stream in range(first, first + streams)
            )
            pack = build_pack(spec, cp_size)
            yield Case(index=index, seed=seed, spec=spec, pack=pack, sources=sources)


def begin(stage: Stage, case: Case, cp_rank: int, *, planted: bool = True) -> None:
    """Enter the layout phase of a case with an empty recorder and its planted faults.

    Args:
        stage: The rank's stage.
        case: The coming case.
        cp_rank: Rank in its context-parallel group, real or logical.
        planted: Whether faults to plant are planted; a clean run to compare with has none.
    """
    stage.journal.phase(Phase.LAYOUT)
    stage.recorder.clear()
    task = stage.task
    found = for_rank(task.planted, task.scenario.id, task.global_rank)
    kinds = tuple(item.kind for item in found if planted and item.strikes(stage.journal.entered))
    topk = task.scenario.model.dsa_indexer_topk
    for kind in plant(stage.recorder, kinds, rows_of_rank(case.pack, cp_rank), topk):
        text = f"{kind}: microbatch {case.index} has no row on cp_rank {cp_rank} that it fits"
        stage.journal.evidence(NoteEvidence(topic=NEVER_STRUCK, text=text))
    look_before(stage)
    stage.perturbation.aim(stage.recorder, site_of(stage, case, cp_rank))
    stage.gradients.aim(replace(site_of(stage, case, cp_rank), layer=0))


@contextlib.contextmanager
def kernels(stage: Stage, case: Case) -> Iterator[None]:
    """Install the scenario's kernels for a case; at the end say what was broken on purpose."""
    scenario = stage.task.scenario
    # It stays that way for what looks at the case afterwards.
    hand_over(case.spec.boundaries)
    installed = kernels_installed(
        scenario.kernels,
        stage.source,
        stage.recorder,
        seed=case.seed,
        overlays=scenario.overlays,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(installed)
        if scenario.training.backward:
            # Inside the perturbation: the build's functions are judged, not what it makes of them.
            stack.enter_context(stage.gradients.watching())
        stack.enter_context(stage.perturbation.installed(stage.recorder))
        outside = _third_party(stage, case)
        stack.enter_context(outside.installed())
        try:
            yield
        finally:
            for call in outside.evidence():
                stage.journal.evidence(call)
            for record in stage.perturbation.evidence(stage.recorder):
                stage.journal.evidence(record)
            for seen in stage.gradients.evidence():
                stage.journal.evidence(seen)


def _third_party(stage: Stage, case: Case) -> ThirdParty:
    site = stage.perturbation.site
    assert site is not None, "a case has begun before its kernels are installed"
    return ThirdParty(
        spec=stage.task.scenario.kernels.third_party_hook,
        case=HookCase(
            site=site,
            pack=case.pack if case.packed else None,
            cp_size=case.pack.cp_size,
            offers_facts=stage.facts.get("offers_layout_facts") is True,
        ),
    )


def mask_of(case: Case, cp_rank: int) -> torch.Tensor | None:
    """Mask ``[1, rows]`` of real rows where the microbatch hands one over, else None."""
    if not case.spec.real_token_mask_q:
        return None
    return real_rows(case.pack, cp_rank).unsqueeze(0)


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
    evidence: list[Evidence] = list(collect(stage.recorder, subject))
    evidence += layout_records(stage, case.pack, site)
    evidence += state_records(stage, case.pack, site)
    evidence += dump_records(stage, case.pack, evidence)
    stage.journal.phase(Phase.RECORD)
    for record in evidence:
        stage.journal.evidence(record)
    del subject, evidence
    for looked in memory_records(stage, site):
        stage.journal.evidence(looked)
