"""How often a fault comes, from the attempts that were made, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist

from harness.record.result import Attempt
from harness.record.verdict import FAULTS, Verdict

CONFIDENCE = 0.95
"""Usual probability with which an interval shall hold the true rate."""

_SAY_NOTHING = frozenset({Verdict.NOT_RUN, Verdict.INFRASTRUCTURE, Verdict.HARNESS_ERROR})
"""Verdicts of attempts that were no trial of the build."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """A share of trials with its confidence interval.

    Attributes:
        trials: Attempts that say something about the build.
        hits: Of these, the ones counted.
        low: Lower end of the interval of the true share.
        high: Upper end.
    """

    trials: int
    hits: int
    low: float
    high: float
    confidence: float = CONFIDENCE

    @property
    def share(self) -> float:
        """Hits / trials; 0.0 without trials."""
        return self.hits / self.trials if self.trials else 0.0

    @property
    def text(self) -> str:
        """Such as ``3 of 20 (15.0 %, 95 % interval 5.2 % to 36.0 %)``."""
        if not self.trials:
            return "no attempt that counts"
        sure = f"{self.confidence:.0%}".replace("%", " %")
        ends = f"{100 * self.low:.1f} % to {100 * self.high:.1f} %"
        return f"{self.hits} of {self.trials} ({100 * self.share:.1f} %, {sure} interval {ends})"


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
