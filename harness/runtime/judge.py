"""From what the ranks left on disk to a verdict, and from a verdict to an outcome.

No torch: a verdict can be computed again from the files of a run whose processes are all gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from harness.record.autograd import AutogradEvidence
from harness.record.codec import from_jsonable, to_jsonable
from harness.record.copies import CopyEvidence
from harness.record.deviation import Deviation
from harness.record.evidence import LayoutEvidence, NoteEvidence, ValueEvidence
from harness.record.graphs import GraphEvidence
from harness.record.groups import GroupEvidence
from harness.record.hook_call import HookCallEvidence
from harness.record.launches import LaunchEvidence
from harness.record.memo import MemoEvidence
from harness.record.memory import MemoryEvidence
from harness.record.path import CallEvidence, PathEvidence
from harness.record.perturb import PerturbEvidence
from harness.record.rates import verdict_rates
from harness.record.replay import ReplayEvidence
from harness.record.result import (
    Attempt,
    FactValue,
    Proof,
    RankOutcome,
    ScenarioResult,
)
from harness.record.selection import (
    BehaviourEvidence,
    OffsetEvidence,
    SelectionEvidence,
    WindowEvidence,
)
from harness.record.state import StateEvidence
from harness.record.timing import TimingEvidence
from harness.record.transfers import TransferEvidence
from harness.record.verdict import Outcome, Verdict, primary
from harness.runtime.collective_order import disagreement
from harness.runtime.deciding import deciding
from harness.runtime.first_fault import first_fault
from harness.runtime.journal import JournalContent
from harness.runtime.judge_collected import collected_deviations
from harness.runtime.judge_groups import group_deviations
from harness.runtime.judge_hooks import hook_deviations
from harness.runtime.judge_memo import memo_deviations
from harness.runtime.judge_memory import memory_deviations
from harness.runtime.judge_path import path_deviations
from harness.runtime.judge_perturb import perturb_deviations, perturbed_fault, wanted_verdict
from harness.runtime.judge_replay import replay_deviations
from harness.scenario.known import (
    VERSIONED,
    EffectiveBuild,
    expectation_missed,
    matching_rule,
    rule_holds,
)
from harness.scenario.spec import Scenario

PROOF = "proof"
"""Name of the journal fact that holds a rank's ``Proof``."""

MISSING_CAPABILITY = "missing_capability"
"""Topic of the note by which a rank says that it cannot run the scenario."""


def judge_attempt(
    scenario: Scenario,
    ranks: tuple[RankOutcome, ...],
    journals: Sequence[JournalContent],
    *,
    number: int,
    started_at: str,
    duration_s: float,
    isolation: str,
    injected: tuple[str, ...] = (),
) -> Attempt:
    """Compute the verdict of one attempt from its ranks' ends and journals."""
    notes = _all(NoteEvidence, journals)
    selections = _all(SelectionEvidence, journals)
    paths = _all(PathEvidence, journals)
    layouts = _all(LayoutEvidence, journals)
    values = _all(ValueEvidence, journals)
    memos = _all(MemoEvidence, journals)
    autograd = _all(AutogradEvidence, journals)
    groups = _all(GroupEvidence, journals)
    # Also beside a fault: the groups at its time are often why it came.
    deviations = group_deviations(groups)
    fault = first_fault(ranks, disagreement(journals))
    fault = perturbed_fault(scenario, fault, ranks, journals)
    missing = _missing_capability(notes)
    verdicts: set[Verdict] = set()
    if fault is not None:
        verdicts.add(fault.verdict)
    elif missing is not None:
        verdicts.add(Verdict.NOT_RUN)
    else:
        deviations += _deviations(scenario, journals, memos)
        verdicts |= _selection_verdicts(selections)
        verdicts |= {Verdict.WRONG_VALUE for item in layouts if not item.equal}
        verdicts |= {
            Verdict.WRONG_GRADIENT if item.gradient else Verdict.WRONG_VALUE
            for item in values
            if not item.within
        }
        verdicts |= {Verdict.WRONG_GRADIENT for item in autograd if not item.right}
        verdicts |= _completeness_verdicts(scenario, selections)
        verdicts |= _call_verdicts(scenario, values)
    if missing is None or fault is not None:
        verdicts |= {deviation.verdict for deviation in deviations}
    leading = primary(verdicts or {Verdict.PASS})
    return Attempt(
        number=number,
        verdict=leading,
        secondary=tuple(sorted(verdicts - {leading}, key=lambda verdict: verdict.rank)),
        started_at=started_at,
        duration_s=duration_s,
        isolation=isolation,
        ranks=ranks,
        fault=fault,
        proof=_proof(journals, injected),
        selections=selections,
        windows=_all(WindowEvidence, journals),
        offsets=_all(OffsetEvidence, journals),
        behaviours=_all(BehaviourEvidence, journals),
        paths=paths,
        layouts=layouts,
        values=values,
        calls=_all(CallEvidence, journals),
        transfers=_all(TransferEvidence, journals),
        states=_all(StateEvidence, journals),
        launches=_all(LaunchEvidence, journals),
        graphs=_all(GraphEvidence, journals),
        copies=_all(CopyEvidence, journals),
        timings=_all(TimingEvidence, journals),
        replays=_all(ReplayEvidence, journals),
        memory=_all(MemoryEvidence, journals),
        groups=groups,
        hook_calls=_all(HookCallEvidence, journals),
        memos=memos,
        perturbations=_all(PerturbEvidence, journals),
        autograd=autograd,
        deviations=deviations,
        notes=notes,
        missing_capability=missing if leading is Verdict.NOT_RUN else None,
    )


def _deviations(
    scenario: Scenario, journals: Sequence[JournalContent], memos: tuple[MemoEvidence, ...]
) -> tuple[Deviation, ...]:
    facts = _proof(journals, ()).facts
    found = path_deviations(scenario, journals, facts) + memo_deviations(scenario, memos)
    found += collected_deviations(scenario, journals, facts)
    found += replay_deviations(scenario, journals)
    found += memory_deviations(scenario, journals)
    found += hook_deviations(scenario, journals, facts)
    return found + perturb_deviations(scenario, journals)


def _all[T](kind: type[T], journals: Sequence[JournalContent]) -> tuple[T, ...]:
    return tuple(item for journal in journals for item in journal.of(kind))


def _missing_capability(notes: tuple[NoteEvidence, ...]) -> str | None:
    for note in notes:
        if note.topic == MISSING_CAPABILITY:
            return note.text
    return None


def _selection_verdicts(selections: tuple[SelectionEvidence, ...]) -> set[Verdict]:
    verdicts = set()
    for selection in selections:
        total = selection.total
        if total.num_out_of_bounds:
            verdicts.add(Verdict.OUT_OF_BOUNDS)
        if total.below or total.missing or total.duplicate:
            verdicts.add(Verdict.WRONG_SELECTION)
    return verdicts


def _completeness_verdicts(
    scenario: Scenario, selections: tuple[SelectionEvidence, ...]
) -> set[Verdict]:
    """A pass needs the selection of every logical rank, layer, microbatch and seed.

    Where ranks have groups, each of them has a selection of its own to show.
    """
    if scenario.level == "kernel":
        return set()
    if scenario.level in ("attention", "model"):
        return _ranks_complete(scenario, selections)
    seen = {(s.cp_rank, s.microbatch, s.seed) for s in selections if s.stage == "final"}
    for microbatch, spec in enumerate(scenario.microbatches):
        ranks = scenario.logical_cp_ranks if spec.cp is None else range(spec.cp)
        for cp_rank, seed in product(ranks, scenario.values.seeds):
            if (cp_rank, microbatch, seed) not in seen:
                return {Verdict.HARNESS_ERROR}
    return set()


def _ranks_complete(scenario: Scenario, selections: tuple[SelectionEvidence, ...]) -> set[Verdict]:
    seen = {
        (s.global_rank, s.layer, s.microbatch, s.seed) for s in selections if s.stage == "final"
    }
    layers = range(1, scenario.model.num_layers + 1) if scenario.level == "model" else (1,)
    due = product(
        range(scenario.num_ranks),
        layers,
        range(len(scenario.microbatches)),
        scenario.values.seeds,
    )
    return set() if seen.issuperset(due) else {Verdict.HARNESS_ERROR}


def _call_verdicts(scenario: Scenario, values: tuple[ValueEvidence, ...]) -> set[Verdict]:
    """A pass of a single kernel call needs its results of every microbatch and seed."""
    if scenario.level != "kernel":
        return set()
    seen = {(value.microbatch, value.seed) for value in values}
    due = product(range(len(scenario.microbatches)), scenario.values.seeds)
    return set() if seen.issuperset(due) else {Verdict.HARNESS_ERROR}


def _proof(journals: Sequence[JournalContent], injected: tuple[str, ...]) -> Proof:
    proofs = [from_jsonable(Proof, j.facts[PROOF]) for j in journals if PROOF in j.facts]
    if not proofs:
        return Proof(injected=injected)
    first = proofs[0]
    facts: dict[str, FactValue] = {}
    for proof in proofs:
        facts.update(proof.facts)
    return replace(first, injected=injected, facts=facts)


def conclude(
    scenario: Scenario, attempts: tuple[Attempt, ...], *, file: str, rerun: str
) -> ScenarioResult:
    """Hold the deciding attempt against what the scenario expects of this build."""
    decides = deciding(attempts, lambda attempt: _outcome(scenario, attempt)[0])
    outcome, expected, explanation = _outcome(scenario, decides)
    rates = verdict_rates(attempts)
    several = sum(rate.hits for rate in rates.values()) > 1
    return ScenarioResult(
        id=scenario.id,
        content_hash=scenario.content_hash,
        summary=scenario.summary,
        source=scenario.source,
        tags=scenario.tags,
        file=file,
        scenario=to_jsonable(scenario),
        attempts=attempts,
        outcome=outcome,
        expected=expected,
        explanation=explanation,
        rerun=rerun,
        decides=decides.number,
        rates={str(verdict): rate for verdict, rate in rates.items()} if several else {},
    )


def effective_build(attempt: Attempt) -> EffectiveBuild:
    """What ``known`` rules are matched against: probed facts, then effective versions."""
    facts = dict(attempt.proof.facts)
    versions = {name: _text(facts.pop(name, None)) for name in VERSIONED}
    return EffectiveBuild(
        facts=facts,
        versions=versions,
        arch=_text(facts.pop("arch", None)) or "",
        source=_text(facts.pop("source", None)) or "",
        overlays=attempt.proof.overlays,
    )


def _text(value: FactValue) -> str | None:
    return None if value is None else str(value)


def _outcome(scenario: Scenario, attempt: Attempt) -> tuple[Outcome, str, str]:
    wanted = wanted_verdict(scenario, attempt.proof.facts)
    if attempt.verdict is Verdict.NOT_RUN:
        return Outcome.NOT_RUN, str(wanted), f"missing {attempt.missing_capability}"
    rule = matching_rule(scenario.known, effective_build(attempt))
    if rule is None:
        if attempt.verdict is not wanted:
            return Outcome.UNEXPECTED, str(wanted), _unexpected(attempt)
        missed = expectation_missed(scenario.expect, attempt)
        if missed is not None:
            return Outcome.UNEXPECTED, str(wanted), missed
        return Outcome.EXPECTED, str(wanted), ""
    expected = f"known: {rule.verdict}" + (f" as {rule.behaviour}" if rule.behaviour else "")
    holds, difference = rule_holds(rule, attempt)
    if holds:
        return Outcome.KNOWN, expected, f"known of this build, see {rule.link}"
    if attempt.verdict is wanted:
        text = f"known of this build ({rule.link}), but {wanted} here: remove the rule"
        return Outcome.FIXED, expected, text
    return Outcome.UNEXPECTED, expected, difference


def _unexpected(attempt: Attempt) -> str:
    if attempt.fault is not None:
        return attempt.fault.cause
    verdicts = ", ".join(str(verdict) for verdict in (attempt.verdict, *attempt.secondary))
    if not attempt.deviations:
        return verdicts
    return f"{verdicts}: {attempt.deviations[0].text}"
