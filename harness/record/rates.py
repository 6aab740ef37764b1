"""How often a fault comes, from the attempts that were made, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from statistics import NormalDist

from harness.record.rate import CONFIDENCE, Rate
from harness.record.result import Attempt
from harness.record.verdict import FAULTS, Verdict

_SAY_NOTHING = frozenset({Verdict.NOT_RUN, Verdict.INFRASTRUCTURE, Verdict.HARNESS_ERROR})
"""Verdicts of attempts that were no trial of the build."""


def wilson_interval(hits: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return Wilson's score interval of a share (Wilson 1927, without continuity correction).

    Unlike the textbook interval it stays inside [0, 1] and says something for 0 hits: 0 of 20
    leaves rates up to 16 percent possible.

    Args:
        hits: Trials that count.
        trials: All trials; 0 gives (0, 1), since nothing is known.
        confidence: Between 0 and 1, both excluded.

    Raises:
        ValueError: for impossible numbers.
    """
    if not 0 <= hits <= trials:
        raise ValueError(f"expected 0 <= hits <= trials, found {hits} hits of {trials} trials")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"expected a confidence between 0 and 1, found {confidence}")
    if trials == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = hits / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z * sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials)) / scale
    # The ends are exact where all trials agree; rounding must not move them.
    low = 0.0 if hits == 0 else max(0.0, centre - half)
    high = 1.0 if hits == trials else min(1.0, centre + half)
    return low, high


def rate(hits: int, trials: int, confidence: float = CONFIDENCE) -> Rate:
    """Return a share of trials with its interval.

    Raises:
        ValueError: as ``wilson_interval``.
    """
    low, high = wilson_interval(hits, trials, confidence)
    return Rate(trials=trials, hits=hits, low=low, high=high, confidence=confidence)


def verdict_rate(
    attempts: Iterable[Attempt], verdicts: Iterable[Verdict], confidence: float = CONFIDENCE
) -> Rate:
    """Return how often attempts show one of the given verdicts, as leading or secondary one.

    Attempts that did not run, or that the machine or the harness spoilt, are no trials.
    """
    wanted = frozenset(verdicts)
    trials = [attempt for attempt in attempts if attempt.verdict not in _SAY_NOTHING]
    hits = sum(bool(wanted & {attempt.verdict, *attempt.secondary}) for attempt in trials)
    return rate(hits, len(trials), confidence)


def fault_rate(attempts: Iterable[Attempt], confidence: float = CONFIDENCE) -> Rate:
    """Return how often attempts end in a fault of the build: memory fault, crash, hang, ..."""
    return verdict_rate(attempts, FAULTS - _SAY_NOTHING, confidence)


def verdict_rates(
    attempts: Iterable[Attempt], confidence: float = CONFIDENCE
) -> dict[Verdict, Rate]:
    """Return the rate of each leading verdict that occurs, most severe first."""
    trials = [attempt.verdict for attempt in attempts if attempt.verdict not in _SAY_NOTHING]
    seen = sorted(set(trials), key=lambda verdict: verdict.rank)
    return {found: rate(trials.count(found), len(trials), confidence) for found in seen}
