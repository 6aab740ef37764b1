"""A share of trials with its confidence interval."""

from __future__ import annotations

from dataclasses import dataclass

CONFIDENCE = 0.95
"""Usual probability with which an interval shall hold the true rate."""


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
