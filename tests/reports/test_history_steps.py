"""Steps and labels: what is planted is found in time, and flat noise raises nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from reports.history.policy import POLICIES, Label, Policy, judge
from reports.history.steps import LEAST_SEGMENT, steps


def series(seed: int, nights: int, *, step: float = 0.0, at: int = 0) -> list[float]:
    """Noise of one percent with busy nights of +25 percent in three of a hundred."""
    rng = random.Random(seed)
    values = []
    for n in range(nights):
        value = (1.0 + (step if n >= at else 0.0)) * (1.0 + rng.gauss(0.0, 0.01))
        values.append(value * (1.25 if rng.random() < 0.03 else 1.0))
    return values


def nights_until_told(values: Sequence[float], at: int) -> int | None:
    for n in range(at + 1, len(values) + 1):
        trend = judge("time_s", values[:n])
        if trend.step is not None and trend.step.index >= at - 2:
            return n - at
    return None


@pytest.mark.parametrize("seed", range(20))
def test_a_step_of_five_percent_is_told_within_six_nights(seed: int) -> None:
    values = series(seed, 50, step=0.05, at=40)
    told = nights_until_told(values, 40)
    assert told is not None
    assert told <= 6


@pytest.mark.parametrize("seed", range(20))
def test_sixty_flat_noisy_nights_raise_no_alarm(seed: int) -> None:
    values = series(seed, 60)
    assert not any(judge("time_s", values[:n]).acts for n in range(1, 61))


def test_a_step_for_the_better_is_no_alarm() -> None:
    assert judge("time_s", series(1, 60, step=-0.2, at=40)).step is None


def brute_force(values: Sequence[float], penalty: float) -> float:
    """Least cost over all ways to cut a series into segments."""
    n = len(values)

    def cost(part: Sequence[float]) -> float:
        return min(sum(abs(v - centre) for v in part) for centre in part)

    best = [0.0] + [float("inf")] * n
    for end in range(1, n + 1):
        for start in range(end - LEAST_SEGMENT + 1):
            found = best[start] + cost(values[start:end]) + (penalty if start else 0.0)
            best[end] = min(best[end], found)
    return best[n]


@pytest.mark.parametrize("seed", range(8))
def test_the_fit_is_exact(seed: int) -> None:
    from reports.history.steps import _fit

    values = series(seed, 16, step=0.1, at=8)
    for penalty in (0.02, 0.1, 0.5):
        bounds = _fit(values, penalty)
        assert all(b - a >= LEAST_SEGMENT for a, b in pairwise(bounds))
        total = penalty * (len(bounds) - 2)
        for a, b in pairwise(bounds):
            part = values[a:b]
            total += min(sum(abs(v - centre) for v in part) for centre in part)
        assert total == pytest.approx(brute_force(values, penalty))


def test_a_step_has_its_place_and_size() -> None:
    (found,) = steps([1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 2.0, 2.1, 1.9, 2.0, 2.1, 1.9])
    assert (found.index, found.confirmed) == (6, 6)
    assert found.ratio == pytest.approx(2.0, rel=0.06)


POLICY = Policy(better="lower", ratio=1.2, baseline="median", window=5, least=3, confirmed=2)


@pytest.mark.parametrize(
    ("recent", "label"),
    [
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], Label.NO_REGRESSION),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 1.5], Label.NO_REGRESSION),  # one night is none
        ([1.0, 1.0, 1.0, 1.0, 1.5, 1.5], Label.REGRESSION),
        ([1.0, 1.5, 1.5, 1.5, 1.0, 1.0], Label.SUSPICIOUS),  # three in a row, recovered
        ([1.0, 1.5, 1.5, 1.0, 1.0, 1.0], Label.NO_REGRESSION),
        ([1.0, 1.0, 1.0, 1.0, 1.2, 1.2], Label.NO_REGRESSION),  # at the ratio is not beyond it
    ],
)
def test_labels(recent: list[float], label: Label) -> None:
    assert judge("x", [1.0] * 5 + recent, POLICY).label is label


def test_few_nights_are_insufficient() -> None:
    assert judge("x", [1.0, 9.0, 9.0], POLICY).label is Label.INSUFFICIENT
    assert judge("x", [1.0, 1.0, 1.0, 9.0, 9.0], POLICY).label is Label.REGRESSION


def test_higher_is_better() -> None:
    policy = POLICIES["overlap"]
    assert judge("overlap", [1.0] * 6 + [0.99, 0.99], policy).label is Label.REGRESSION
    assert judge("overlap", [0.99] * 6 + [1.0, 1.0], policy).label is Label.NO_REGRESSION


def test_baselines_are_formed_as_the_policy_says() -> None:
    window = [1.0, 2.0, 6.0]
    for form, value in (("max", 6.0), ("min", 1.0), ("median", 2.0)):
        policy = Policy(better="lower", ratio=1.0, baseline=form)  # type: ignore[arg-type]
        assert policy.level(window) == value


def test_a_value_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        judge("time_s", [1.0, float("nan")])
