from __future__ import annotations

import itertools

import pytest

from harness.record.verdict import FAULTS, ExitCode, Outcome, Verdict, exit_code, primary

PRECEDENCE = (
    *("infrastructure", "harness_error", "memory_fault", "crash", "hang", "out_of_memory"),
    *("compile_failed", "refused", "capture_failed", "wrong_path", "out_of_bounds"),
    *("wrong_selection", "wrong_value", "wrong_gradient", "replay_mismatch"),
    *("nondeterministic", "wrong_memo", "state_leak", "pass"),
)


def test_precedence_is_the_documented_one() -> None:
    assert [str(verdict) for verdict in Verdict] == [*PRECEDENCE, "not_run"]
    assert [Verdict(name).rank for name in PRECEDENCE] == list(range(len(PRECEDENCE)))


def test_the_leading_verdict_does_not_depend_on_order_or_repeats() -> None:
    for first, second in itertools.combinations(Verdict, 2):
        assert primary([first, second]) is first
        assert primary([second, first, second]) is first


def test_no_verdict_at_all_is_never_a_pass() -> None:
    assert primary([Verdict.PASS]) is Verdict.PASS
    with pytest.raises(ValueError, match="without evidence has no verdict"):
        primary([])


def test_exit_codes_are_the_documented_ones() -> None:
    numbers = {code.name: int(code) for code in ExitCode}
    assert numbers == {
        "OK": 0,
        "CHECK_FAILED": 1,
        "USAGE": 2,
        "HARNESS_ERROR": 3,
        "FAULT": 4,
        "NOTHING_RAN": 5,
        "REGRESSION": 6,
        "CANNOT_BISECT": 125,
        "INTERRUPTED": 130,
        "TERMINATED": 143,
    }
    assert len({code.meaning for code in ExitCode}) == len(ExitCode)


PASSED = (Verdict.PASS, Outcome.EXPECTED)
KNOWN = (Verdict.WRONG_SELECTION, Outcome.KNOWN)
KNOWN_CRASH = (Verdict.CRASH, Outcome.KNOWN)
EXPECTED_HANG = (Verdict.HANG, Outcome.EXPECTED)
WRONG = (Verdict.WRONG_SELECTION, Outcome.UNEXPECTED)
CRASH = (Verdict.CRASH, Outcome.UNEXPECTED)
FIXED = (Verdict.PASS, Outcome.FIXED)
SKIPPED = (Verdict.NOT_RUN, Outcome.NOT_RUN)
BROKEN = (Verdict.HARNESS_ERROR, Outcome.UNEXPECTED)


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [
        ([PASSED], ExitCode.OK),
        ([PASSED, KNOWN, KNOWN_CRASH, EXPECTED_HANG, SKIPPED], ExitCode.OK),
        ([KNOWN], ExitCode.OK),
        ([], ExitCode.NOTHING_RAN),
        ([SKIPPED, SKIPPED], ExitCode.NOTHING_RAN),
        ([PASSED, WRONG], ExitCode.CHECK_FAILED),
        ([PASSED, FIXED], ExitCode.CHECK_FAILED),
        ([SKIPPED, FIXED], ExitCode.CHECK_FAILED),
        ([WRONG, CRASH, FIXED], ExitCode.FAULT),
        ([PASSED, CRASH], ExitCode.FAULT),
        ([CRASH, BROKEN, WRONG], ExitCode.HARNESS_ERROR),
        ([BROKEN, SKIPPED], ExitCode.HARNESS_ERROR),
    ],
)
def test_exit_code_of_a_run(outcomes: list[tuple[Verdict, Outcome]], code: ExitCode) -> None:
    assert exit_code(outcomes) is code
    assert exit_code(reversed(outcomes)) is code


@pytest.mark.parametrize("verdict", sorted(FAULTS))
def test_an_unexpected_fault_outranks_a_failed_check(verdict: Verdict) -> None:
    assert exit_code([WRONG, (verdict, Outcome.UNEXPECTED)]) is ExitCode.FAULT
    assert exit_code([PASSED, (verdict, Outcome.KNOWN)]) is ExitCode.OK


def test_every_other_unexpected_verdict_is_a_failed_check() -> None:
    for verdict in set(Verdict) - FAULTS - {Verdict.HARNESS_ERROR}:
        assert exit_code([(verdict, Outcome.UNEXPECTED)]) is ExitCode.CHECK_FAILED
