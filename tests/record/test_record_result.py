"""Constructors refuse contradictions; each refusal has a healthy twin next to it."""

from __future__ import annotations

import dataclasses

import pytest
from record_examples import example

from harness.record.evidence import LayoutEvidence, ValueEvidence
from harness.record.path import PathEvidence
from harness.record.phase import SCENARIO_PHASES, Phase
from harness.record.result import (
    Attempt,
    FaultReport,
    RunRecord,
    ScenarioResult,
)
from harness.record.selection import OverlapStats, SelectionEvidence
from harness.record.verdict import FAULTS, Outcome, Verdict

RIGHT = example(SelectionEvidence, total=OverlapStats(rows=1, due=2, exact=1, tie=1))
BELOW = example(SelectionEvidence, total=OverlapStats(rows=1, due=2, exact=1, below=1))
FUTURE = example(SelectionEvidence, total=OverlapStats(rows=1, due=2, exact=1, future=1))
PATH = example(PathEvidence)
FAULT = example(FaultReport)


def attempt(verdict: Verdict, **fields: object) -> Attempt:
    return Attempt(number=1, verdict=verdict, **fields)  # type: ignore[arg-type]


def test_a_pass_with_evidence_is_taken() -> None:
    passed = attempt(
        Verdict.PASS,
        paths=(PATH,),
        selections=(RIGHT,),
        values=(example(ValueEvidence, within=True),),
        layouts=(example(LayoutEvidence, equal=True),),
    )
    assert passed.verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paths": ()}, "needs path evidence"),
        ({"fault": FAULT}, "no fault report"),
        ({"secondary": (Verdict.WRONG_MEMO,)}, "no secondary verdicts"),
        ({"secondary": (Verdict.PASS,)}, "also listed as secondary"),
        ({"selections": (RIGHT, BELOW)}, "no wrong pick"),
        ({"selections": (FUTURE,)}, "no wrong pick"),
        ({"values": (example(ValueEvidence, within=False),)}, "beyond its tolerance"),
        ({"layouts": (example(LayoutEvidence, equal=False),)}, "layout table that differs"),
        ({"missing_capability": "a GPU"}, "go together"),
    ],
)
def test_a_pass_that_contradicts_its_evidence_is_refused(
    changes: dict[str, object], message: str
) -> None:
    fields: dict[str, object] = {"paths": (PATH,), "selections": (RIGHT,)}
    assert attempt(Verdict.PASS, **fields).verdict is Verdict.PASS
    with pytest.raises(ValueError, match=message):
        attempt(Verdict.PASS, **(fields | changes))


@pytest.mark.parametrize("verdict", sorted(FAULTS))
def test_a_fault_needs_a_report(verdict: Verdict) -> None:
    assert attempt(verdict, fault=FAULT).fault is FAULT
    with pytest.raises(ValueError, match="needs a fault report"):
        attempt(verdict)


def test_not_run_names_what_is_missing() -> None:
    assert attempt(Verdict.NOT_RUN, missing_capability="a GPU").missing_capability == "a GPU"
    with pytest.raises(ValueError, match="go together"):
        attempt(Verdict.NOT_RUN)
    with pytest.raises(ValueError, match="go together"):
        attempt(Verdict.WRONG_MEMO, missing_capability="a GPU")


def test_wrong_selection_needs_a_wrong_pick() -> None:
    assert attempt(Verdict.WRONG_SELECTION, selections=(RIGHT, BELOW)).selections
    with pytest.raises(ValueError, match="with a wrong pick"):
        attempt(Verdict.WRONG_SELECTION, selections=(RIGHT,))


def test_out_of_bounds_needs_a_pick_out_of_bounds() -> None:
    assert attempt(Verdict.OUT_OF_BOUNDS, selections=(FUTURE,)).selections
    with pytest.raises(ValueError, match="pick out of bounds"):
        attempt(Verdict.OUT_OF_BOUNDS, selections=(BELOW,))


def test_secondary_verdicts_do_not_repeat_the_leading_one() -> None:
    fields: dict[str, object] = {"selections": (BELOW,)}
    both = attempt(Verdict.WRONG_SELECTION, secondary=(Verdict.WRONG_MEMO,), **fields)
    assert both.secondary == (Verdict.WRONG_MEMO,)
    with pytest.raises(ValueError, match="also listed as secondary"):
        attempt(Verdict.WRONG_SELECTION, secondary=(Verdict.WRONG_SELECTION,), **fields)


def result(attempts: tuple[Attempt, ...], outcome: Outcome) -> ScenarioResult:
    return example(ScenarioResult, attempts=attempts, outcome=outcome)


def test_the_last_attempt_decides() -> None:
    first = attempt(Verdict.HANG, fault=FAULT)
    last = attempt(Verdict.PASS, paths=(PATH,))
    both = result((first, last), Outcome.EXPECTED)
    assert both.last is last
    assert both.verdict is Verdict.PASS
    with pytest.raises(ValueError, match="has no attempt"):
        result((), Outcome.EXPECTED)


@pytest.mark.parametrize("outcome", sorted(set(Outcome) - {Outcome.NOT_RUN}))
def test_what_did_not_run_has_no_judged_outcome(outcome: Outcome) -> None:
    skipped = attempt(Verdict.NOT_RUN, missing_capability="a GPU")
    passed = attempt(Verdict.PASS, paths=(PATH,))
    assert result((skipped,), Outcome.NOT_RUN).outcome is Outcome.NOT_RUN
    assert result((passed,), outcome).outcome is outcome
    with pytest.raises(ValueError, match="does not go with verdict not_run"):
        result((skipped,), outcome)
    with pytest.raises(ValueError, match="does not go with verdict pass"):
        result((passed,), Outcome.NOT_RUN)


def test_records_are_frozen_and_keyword_only() -> None:
    record = example(RunRecord)
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.exit_code = 0
    with pytest.raises(TypeError, match="positional"):
        OverlapStats(1)  # type: ignore[misc]


def test_scenario_phases_start_at_layout() -> None:
    assert SCENARIO_PHASES[0] is Phase.LAYOUT
    assert SCENARIO_PHASES[-1] is Phase.RECORD
    assert Phase.COMPILE not in SCENARIO_PHASES


def test_overlap_counts_add_up() -> None:
    one = OverlapStats(rows=1, due=4, exact=2, tie=1, below=1, largest_gap=0.5)
    two = OverlapStats(rows=3, due=4, exact=4, future=1, largest_gap=0.25)
    both = one + two
    assert (both.rows, both.due, both.exact, both.largest_gap) == (4, 8, 6, 0.5)
    assert both.overlap == pytest.approx(7 / 8)
    assert both.strict_overlap == pytest.approx(6 / 8)
    assert (both.num_out_of_bounds, both.num_wrong) == (1, 2)
    assert OverlapStats(rows=2).overlap == OverlapStats(rows=2).strict_overlap == 1.0
