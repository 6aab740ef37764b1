"""Which attempt decides, and how often each verdict came."""

import pytest

from harness.record.path import PathEvidence
from harness.record.result import Attempt, FaultReport
from harness.record.verdict import FAULTS, Outcome, Verdict
from harness.runtime.deciding import deciding
from harness.runtime.judge import conclude

PATH = PathEvidence(
    global_rank=0,
    cp_rank=0,
    microbatch=0,
    layer=1,
    seed=0,
    backend="none",
    plan="packed_thd",
    plan_source="inferred",
    reason="",
    scorer="none",
    fused=False,
)


def attempt(number, word):
    cut_short = "the run was killed while it ran" if word == "cut" else None
    verdict = Verdict.INFRASTRUCTURE if word == "cut" else Verdict(word)
    fault = FaultReport(verdict=verdict, global_rank=0, phase=None, cause="why")
    return Attempt(
        number=number,
        verdict=verdict,
        fault=fault if verdict in FAULTS else None,
        paths=(PATH,),
        missing_capability="a GPU" if verdict is Verdict.NOT_RUN else None,
        cut_short=cut_short,
    )


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ("pass pass pass", 3),
        ("pass crash pass", 2),
        ("crash hang crash", 3),
        ("wrong_value memory_fault pass", 2),
        ("memory_fault infrastructure pass", 1),
        ("pass infrastructure pass", 2),
        ("pass harness_error pass", 2),
        ("cut pass", 2),
        ("pass cut", 1),
        ("cut cut", 2),
        ("crash cut pass", 1),
        ("not_run pass", 2),
    ],
)
def test_the_worst_attempt_decides_and_is_never_rerun_into_green(make_scenario, words, number):
    attempts = tuple(attempt(n, word) for n, word in enumerate(words.split(), start=1))
    result = conclude(make_scenario("a"), attempts, file="", rerun="")
    assert result.decides == number
    assert result.last is attempts[number - 1]
    assert (result.outcome is Outcome.EXPECTED) is (result.verdict is Verdict.PASS)


def test_what_is_unexpected_decides_before_what_is_expected():
    crash, wrong = attempt(1, "crash"), attempt(2, "wrong_path")
    outcomes = {1: Outcome.KNOWN, 2: Outcome.UNEXPECTED}
    assert deciding((crash, wrong), lambda a: outcomes[a.number]) is wrong
    assert deciding((crash, wrong), lambda a: Outcome.UNEXPECTED) is crash
    assert deciding((crash, wrong), lambda a: Outcome.KNOWN) is crash


def test_a_known_fault_that_comes_and_goes_stays_known(make_scenario):
    from dataclasses import replace

    scenario = make_scenario("a")
    scenario = replace(scenario, expect=replace(scenario.expect, verdict=Verdict.CRASH))
    words = ("pass", "crash", "pass", "pass")
    attempts = tuple(attempt(n, word) for n, word in enumerate(words, start=1))
    result = conclude(scenario, attempts, file="", rerun="")
    assert (result.verdict, result.outcome) == (Verdict.CRASH, Outcome.EXPECTED)
    assert {name: (r.hits, r.trials) for name, r in result.rates.items()} == {
        "crash": (1, 4),
        "pass": (3, 4),
    }
    assert result.rates["crash"].low < 0.25 < result.rates["crash"].high


def test_a_single_trial_has_no_rate(make_scenario):
    result = conclude(
        make_scenario("a"), (attempt(1, "cut"), attempt(2, "pass")), file="", rerun=""
    )
    assert result.rates == {}
