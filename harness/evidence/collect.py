"""Collect all evidence of one forward: path, kernel calls, gathered keys, selection, behaviour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from harness.evidence.calls import kernel_calls
from harness.evidence.observation import (
    ScorerObservation,
    observe_scorer,
    rows_in_kernel_chunk,
    wrapper_picks,
)
from harness.evidence.offsets import offset_evidence
from harness.evidence.path import path_evidence
from harness.evidence.perturbed import as_handed_over
from harness.evidence.sharing import observe_layer, shared_path
from harness.evidence.windows import kernel_windows, window_evidence
from harness.layout import Pack, PlanDecision
from harness.production.recorder import Recorder
from harness.record.evidence import Evidence, LayoutEvidence, NoteEvidence
from harness.record.selection import OverlapStats, SelectionEvidence
from harness.reference.behaviours import BEHAVIOURS, check_behaviour
from harness.reference.half_heads import half_heads
from harness.reference.marks import Mark, sort_slots
from harness.reference.operands import Operands
from harness.reference.rows import RowTable, rows_of_rank
from harness.reference.sampling import sample_rows
from harness.reference.selection import judge_selection
from harness.reference.site import Site
from harness.scenario.rules.expectations import loss_mode, right_plan
from harness.scenario.spec import Scenario

SILENT_ACCESS = "silent access outside the row"
"""Topic of notes on accesses that a modelled kernel makes as the real one would: unnoticed."""

_SHOWN_FINDINGS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What a forward is judged against.

    Attributes:
        pack: Layout of the microbatch (of one sequence, when unpacked).
        keys: Layer to all its indexer keys ``[batch, keys, dim]`` in packed order, gathered by the
            harness itself.
        site: Rank, microbatch and seed; the layer is filled in per layer.
    """

    scenario: Scenario
    pack: Pack
    keys: Mapping[int, torch.Tensor]
    site: Site


def collect(recorder: Recorder, subject: Subject) -> Iterator[Evidence]:
    """Yield the evidence of one forward on one rank."""
    yield from kernel_calls(recorder, subject.site)
    yield from silent_accesses(recorder)
    layers = sorted({call.layer for call in recorder.calls})
    for layer in layers:
        site = replace(subject.site, layer=layer)
        backend = subject.scenario.kernels.dsa_kernel_backend
        observation = observe_scorer(recorder, layer)
        observation = as_handed_over(recorder, observation, subject.scenario, layer)
        if observation is None and _source(subject, layer) != layer:
            yield from _shared(recorder, subject, site, backend)
            continue
        yield path_evidence(recorder, site, backend, _right_plan(subject))
        if observation is not None:
            yield _gathered_keys(observation, subject, site)
            yield from _selections(recorder, observation, subject, site)


def _right_plan(subject: Subject) -> PlanDecision:
    microbatch = subject.scenario.microbatches[subject.site.microbatch]
    return right_plan(subject.scenario, microbatch)


def _source(subject: Subject, layer: int) -> int:
    """Layer whose picks a layer attends with; level attention builds the first layer alone."""
    scenario = subject.scenario
    return scenario.model.source_layer(layer) if scenario.level == "model" else layer


def _shared(recorder: Recorder, subject: Subject, site: Site, backend: str) -> Iterator[Evidence]:
    """Judge the picks that a sharing layer attended with by the scores of the layer they are of."""
    source = _source(subject, site.layer)
    yield shared_path(recorder, site, backend, source)
    observation = observe_layer(recorder, site.layer, source)
    if observation is not None:
        handed = replace(observation, fused=False)
        known = replace(subject, keys={site.layer: subject.keys[source]})
        yield from _selections(recorder, handed, known, site)


def silent_accesses(recorder: Recorder) -> Iterator[NoteEvidence]:
    """Note the accesses outside a row that a kernel made without faulting."""
    for found in recorder.findings[:_SHOWN_FINDINGS]:
        text = (
            f"{found.kernel}: {found.operand} row {found.row} index {found.index} is element "
            f"{found.element_offset}, allowed {found.allowed} ({found.klass})"
        )
        yield NoteEvidence(topic=SILENT_ACCESS, text=text)
    if len(recorder.findings) > _SHOWN_FINDINGS:
        more = len(recorder.findings) - _SHOWN_FINDINGS
        yield NoteEvidence(topic=SILENT_ACCESS, text=f"and {more} more")


def _gathered_keys(observation: ScorerObservation, subject: Subject, site: Site) -> LayoutEvidence:
    """Hold the keys that were scored against the ones gathered by the harness's own layout."""
    found, due = observation.k, subject.keys[site.layer]
    detail = ""
    if found.shape != due.shape:
        detail = f"expected shape {tuple(due.shape)}, found {tuple(found.shape)}"
    elif not torch.equal(found, due):
        different = (found != due).any(dim=-1)[0].nonzero().flatten()
        detail = f"{different.numel()} of {due.size(1)} keys differ, first at {int(different[0])}"
    return LayoutEvidence(**site.fields(), table="gathered_keys", equal=not detail, detail=detail)


def _selections(
    recorder: Recorder, observation: ScorerObservation, subject: Subject, site: Site
) -> Iterator[Evidence]:
    scenario = subject.scenario
    topk = scenario.model.dsa_indexer_topk
    table = rows_of_rank(subject.pack, site.cp_rank)
    judged = sample_rows(table, scenario.reference.rows, seed=site.seed, topk=topk)
    windows = kernel_windows(recorder, site.layer)
    if windows is not None and windows.numel() != table.num_local_rows:
        windows = None
    if windows is not None:
        yield window_evidence(windows, judged, site)
        yield from offset_evidence(recorder, table, site)
    for batch in range(observation.picks.size(0)):
        operands = Operands(
            q=observation.q[batch],
            k=subject.keys[site.layer][batch],
            w=observation.weights[batch],
            dtype=scenario.reference.dtype,
            exact_arithmetic=_exact_arithmetic(scenario),
        )
        picks = observation.picks[batch]
        final = judge_selection(picks, operands, judged, topk=topk, windows=windows)
        yield final.evidence(site, stage="final")
        if not bool(final.right.all()):
            yield from _behaviours(recorder, picks, operands, judged, site, scenario)
            if scenario.perturb.fact == "tp_slice":
                yield half_heads(picks, operands, judged, final.right, topk=topk, site=site)
    if observation.fused and observation.picks.size(0) == 1:
        yield from _wrapper_bounds(recorder, judged, site, topk)


def _exact_arithmetic(scenario: Scenario) -> bool:
    """Small integers are exact in bf16 and fp32, but only where nothing is projected or rotated."""
    return scenario.level == "scorer" and scenario.values.scores in ("ties", "integers")


def _behaviours(
    recorder: Recorder,
    picks: torch.Tensor,
    operands: Operands,
    table: RowTable,
    site: Site,
    scenario: Scenario,
) -> Iterator[Evidence]:
    """Hold wrong picks against the faulty behaviours that have a name."""
    row_in_chunk = rows_in_kernel_chunk(recorder, site.layer)
    if row_in_chunk is None or row_in_chunk.numel() != table.num_local_rows:
        return
    for name in BEHAVIOURS:
        finding = check_behaviour(
            name,
            picks,
            operands,
            table,
            topk=scenario.model.dsa_indexer_topk,
            row_in_chunk=row_in_chunk,
            # Megatron's sparse indexer loss removes picks whose score is not finite.
            masked_keys="dropped" if _forward_has_loss(scenario, site) else "kept",
        )
        yield finding.evidence(site)


def _forward_has_loss(scenario: Scenario, site: Site) -> bool:
    """Whether the forward itself computes the sparse loss; one that is recomputed leaves it."""
    evaluated = scenario.microbatches[site.microbatch].forward_only
    recomputed = scenario.training.recompute != "none"
    return loss_mode(scenario) == "sparse" and not evaluated and not recomputed


def _wrapper_bounds(
    recorder: Recorder, table: RowTable, site: Site, topk: int
) -> Iterator[SelectionEvidence]:
    """Judge what the top-k kernel itself returned: the caller turns bad picks into -1.

    Only bounds and repeats count here. Which keys are due is judged at the end, since the caller
    ranks nothing where every key is due.
    """
    picks = wrapper_picks(recorder, site.layer)
    if picks is None or picks.size(0) != table.num_local_rows:
        return
    slots = sort_slots(picks[table.row], table)
    stats = OverlapStats(
        rows=int(table.valid.sum()),
        future=int(slots.of(Mark.FUTURE).sum()),
        foreign=int(slots.of(Mark.FOREIGN).sum()),
        out_of_range=int(slots.of(Mark.OUT_OF_RANGE).sum()),
        duplicate=int(slots.of(Mark.DUPLICATE).sum()),
    )
    yield SelectionEvidence(
        **site.fields(), stage="wrapper", topk=topk, reference_dtype="none", total=stats
    )
