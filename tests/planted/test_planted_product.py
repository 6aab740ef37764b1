"""Every kind of planted fault, at three phases and on three of four ranks, through the whole path.

A pairwise selection runs in one torchrun; the rest of the product is for ``make test-all``. Each
fault has its verdict, rank, phase and evidence, the scenario behind it passes, and nothing is left.
"""

from __future__ import annotations

import itertools

import pytest
from planted_product import (
    EARLY,
    KINDS,
    NUM_RANKS,
    PHASES,
    RANKS,
    Ended,
    every_case,
    pairwise,
    run_cases,
)
from planted_runs import Run

from harness.record.verdict import FAULTS, ExitCode, Outcome, Verdict
from harness.runtime.inject import PROCESS_KINDS
from harness.runtime.processes import session_members

PAIRWISE = pairwise(tuple(KINDS), PHASES, RANKS)
REST = [case for case in every_case() if case not in PAIRWISE]

ranks = [pytest.mark.ranks]


def on_ranks(cases, *marks):
    """Parametrize over cases that run on rank processes."""
    decorate = pytest.mark.parametrize("case", cases, ids=lambda case: case.name)

    def mark(test):
        for one in (*ranks, *marks):
            test = one(test)
        return decorate(test)

    return mark


def _names(cases):
    return [(case.kind, case.phase, case.rank) for case in cases]


def test_the_selection_holds_every_pair_and_the_rest_everything_else():
    for axes in itertools.combinations(range(3), 2):
        wanted = itertools.product(*((tuple(KINDS), PHASES, RANKS)[axis] for axis in axes))
        found = {tuple(name[axis] for axis in axes) for name in _names(PAIRWISE)}
        assert found == set(wanted)
    assert len(PAIRWISE) == len(KINDS) * len(PHASES)
    everything = set(itertools.product(KINDS, PHASES, RANKS))
    assert set(_names(PAIRWISE)) | set(_names(REST)) == everything
    # A stray write on a GPU is not run without one; the hardware self-test plants it.
    assert set(PROCESS_KINDS) - {"device_fault"} <= set(KINDS)
    assert RANKS == (0, 1, NUM_RANKS - 1)


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Run:
    return run_cases([*PAIRWISE, *EARLY], tmp_path_factory.mktemp("pairwise"), timeout_s=560)


@pytest.fixture(scope="module")
def rest(tmp_path_factory) -> Run:
    return run_cases(REST, tmp_path_factory.mktemp("rest"), timeout_s=1700)


@on_ranks(PAIRWISE, pytest.mark.timeout(600))
def test_a_fault_is_told_by_verdict_rank_phase_and_evidence(planted, case):
    _check(planted, case)


@on_ranks(EARLY, pytest.mark.timeout(600))
def test_a_fault_before_the_scenarios_own_phases(planted, case):
    result = planted.results[f"planted/{case.name}"]
    assert result.verdict is EARLY[case], result.explanation
    fault = result.last.fault
    assert (fault.global_rank, fault.phase) == (case.rank, case.phase)
    _check_aftermath(planted, case)


@pytest.mark.slow
@on_ranks(REST, pytest.mark.timeout(1800))
def test_so_is_every_other_one(rest, case):
    _check(rest, case)


def _check(run: Run, case) -> None:
    kind = KINDS[case.kind]
    result = run.results[f"planted/{case.name}"]
    attempt = result.last
    assert result.verdict in kind.verdicts, result.explanation
    assert result.outcome is Outcome.UNEXPECTED
    assert attempt.proof.injected == (f"{case.injection}@planted/{case.name}",)
    if result.verdict in FAULTS:
        assert (attempt.fault.global_rank, attempt.fault.phase) == (case.rank, case.phase)
        assert set(attempt.fault.victims) <= set(range(NUM_RANKS)) - {case.rank}
    else:
        assert attempt.fault is None
        assert all(rank.completed for rank in attempt.ranks)
    kind.check(Ended(case=case, run=run, attempt=attempt))
    _check_aftermath(run, case)


def _check_aftermath(run: Run, case) -> None:
    """The next scenario passes as if nothing had happened, and no process is left."""
    after = run.results[f"healthy/{case.name}"]
    assert after.verdict is Verdict.PASS, after.explanation
    assert after.last.proof.injected == ()
    overlaps = {s.total.strict_overlap for s in after.last.selections if s.stage == "final"}
    assert overlaps == {1.0}
    attempts = (run.results[f"planted/{case.name}"].last, after.last)
    sessions = {rank.pid for attempt in attempts for rank in attempt.ranks}
    assert len(sessions) == 2 * NUM_RANKS
    assert session_members(sessions) == ()
    topics = {note.topic for attempt in attempts for note in attempt.notes}
    assert not topics & {"stuck process", "injection that never struck"}


@pytest.mark.timeout(600)
@pytest.mark.ranks
def test_the_run_ends_with_the_worst_code_and_says_so(planted):
    assert planted.record.exit_code == ExitCode.FAULT
    assert planted.status == 1
    assert "exit code 4" in planted.output
