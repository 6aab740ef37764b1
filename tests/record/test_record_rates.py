"""Rates of faults over attempts, against textbook values and plain simulation."""

import random

import pytest

from harness.record.path import PathEvidence
from harness.record.rates import (
    fault_rate,
    rate,
    verdict_rate,
    verdict_rates,
    wilson_interval,
)
from harness.record.result import Attempt, FaultReport
from harness.record.verdict import FAULTS, Verdict

PATH = PathEvidence(
    global_rank=0,
    cp_rank=0,
    microbatch=0,
    layer=1,
    seed=0,
    backend="none",
    plan="none",
    plan_source="build",
    reason="",
    scorer="torch",
    fused=False,
)


def attempt(verdict, *secondary):
    fault = None
    if verdict in FAULTS:
        fault = FaultReport(verdict=verdict, global_rank=0, phase=None, cause="x")
    return Attempt(
        number=1,
        verdict=verdict,
        secondary=secondary,
        paths=(PATH,),
        fault=fault,
        missing_capability="a GPU" if verdict is Verdict.NOT_RUN else None,
    )


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [
        # Newcombe, Statistics in Medicine 17 (1998) 857, table I, method 3.
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 0.8389, 1.0),
    ],
)
def test_the_interval_has_the_published_values(hits, trials, low, high):
    assert wilson_interval(hits, trials) == pytest.approx((low, high), abs=5e-5)


def test_no_trials_say_nothing():
    assert wilson_interval(0, 0) == (0.0, 1.0)
    assert rate(0, 0).share == 0.0
    assert rate(0, 0).text == "no attempt that counts"


def test_ends_are_exact_and_in_order():
    for trials in range(1, 60):
        for hits in range(trials + 1):
            low, high = wilson_interval(hits, trials)
            assert 0.0 <= low <= hits / trials <= high <= 1.0
            assert (low == 0.0) is (hits == 0) and (high == 1.0) is (hits == trials)
            mirrored = wilson_interval(trials - hits, trials)
            assert (1 - mirrored[1], 1 - mirrored[0]) == pytest.approx((low, high))


def test_more_trials_and_less_confidence_narrow_it():
    widths = [high - low for low, high in (wilson_interval(n // 4, n) for n in (8, 40, 400))]
    assert widths == sorted(widths, reverse=True)
    low, high = wilson_interval(3, 20, 0.5)
    wide = wilson_interval(3, 20, 0.99)
    assert wide[0] < low and high < wide[1]


def test_the_true_rate_is_inside_as_often_as_promised():
    draw = random.Random(7)
    inside = 0
    for _ in range(2000):
        hits = sum(draw.random() < 0.2 for _ in range(30))
        low, high = wilson_interval(hits, 30)
        inside += low <= 0.2 <= high
    assert 0.93 < inside / 2000 < 0.97


@pytest.mark.parametrize(("hits", "trials"), [(-1, 3), (4, 3), (1, 0)])
def test_impossible_numbers_are_refused(hits, trials):
    with pytest.raises(ValueError, match="expected 0 <= hits <= trials"):
        wilson_interval(hits, trials)


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0])
def test_a_confidence_in_percent_is_refused(confidence):
    with pytest.raises(ValueError, match="expected a confidence between 0 and 1"):
        wilson_interval(1, 2, confidence)


def test_faults_are_counted_over_the_attempts_that_say_something():
    attempts = [
        *[attempt(Verdict.PASS)] * 16,
        attempt(Verdict.HANG),
        attempt(Verdict.MEMORY_FAULT),
        attempt(Verdict.WRONG_PATH),
        attempt(Verdict.CRASH, Verdict.WRONG_PATH),
        attempt(Verdict.NOT_RUN),
        attempt(Verdict.INFRASTRUCTURE),
        attempt(Verdict.HARNESS_ERROR),
    ]
    found = fault_rate(attempts)
    assert (found.hits, found.trials) == (3, 20)
    assert found.text == "3 of 20 (15.0 %, 95 % interval 5.2 % to 36.0 %)"
    assert fault_rate([attempt(Verdict.PASS)] * 20).hits == 0
    assert verdict_rate(attempts, [Verdict.WRONG_PATH]).hits == 2
    assert list(verdict_rates(attempts)) == [
        Verdict.MEMORY_FAULT,
        Verdict.CRASH,
        Verdict.HANG,
        Verdict.WRONG_PATH,
        Verdict.PASS,
    ]
    assert sum(one.hits for one in verdict_rates(attempts).values()) == 20
