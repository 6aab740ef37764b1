"""When a number has got worse: a policy per metric, and the four labels of PyTorch's dashboard.

Labels and the form of a policy follow the regression reports of https://hud.pytorch.org: a
direction, a ratio, and a baseline formed of a window of earlier nights.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from reports.history.steps import Step, steps

RECENT = 6
"""Nights that are judged against those before them."""
SUSPICIOUS = 3
"""Nights in a row that make it suspicious although the last one recovered."""


class Label(enum.StrEnum):
    """What a trend says, most urgent first."""

    REGRESSION = "regression"
    SUSPICIOUS = "suspicious"
    NO_REGRESSION = "no regression"
    INSUFFICIENT = "insufficient data"


@dataclass(frozen=True, kw_only=True, slots=True)
class Policy:
    """How one metric is judged.

    Attributes:
        better: ``higher`` or ``lower`` values.
        ratio: A value this far from the baseline, or further, is in violation: below it for
            ``higher`` (such as 0.95), above it for ``lower`` (such as 1.2).
        baseline: How the baseline is formed of the window.
        window: Nights before the recent ones that form the baseline.
        least: Nights that the window must have.
        confirmed: Nights in a row, up to the last, that make a violation a regression.
        step: Smallest relative step of the level that is told, 0.0 for none.
    """

    better: Literal["higher", "lower"]
    ratio: float
    baseline: Literal["max", "min", "median"]
    window: int = 10
    least: int = 3
    confirmed: int = 2
    step: float = 0.0

    def level(self, values: Sequence[float]) -> float:
        """Return the baseline of a window."""
        forms: dict[str, Callable[[Sequence[float]], float]]
        forms = {"max": max, "min": min, "median": median}
        return forms[self.baseline](values)

    def violates(self, value: float, baseline: float) -> bool:
        """Tell whether a value is in violation."""
        if self.better == "higher":
            return value < baseline * self.ratio
        return value > baseline * self.ratio


_TIME = Policy(better="lower", ratio=1.25, baseline="median", confirmed=3, step=0.02)
"""Times of shared machines: busy nights come in pairs often enough to wait for a third one."""

POLICIES = {
    # Judgements and exact arithmetic: any loss counts.
    "pass": Policy(better="higher", ratio=1.0, baseline="median", window=6),
    "overlap": Policy(better="higher", ratio=0.9999, baseline="median", window=6),
    "time_s": _TIME,
    "score_s": _TIME,
    "layout_s": _TIME,
    "peak_rss_mib": Policy(better="lower", ratio=1.2, baseline="median", step=0.05),
}
"""Metric to policy. ``strict_overlap`` has none: it moves with ties, which are no fault."""

STEP_SIGMAS = 2.5
"""Size of a step, in units of the noise, from which it is told."""
LEVEL_SHARE = 0.8
"""Share of a new level's nights that have to lie nearer to it than to the old one."""
LEAST_STEP_NIGHTS = 12
"""Nights before which no step is told: the noise is not known well enough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trend:
    """A metric over the nights.

    Attributes:
        values: Oldest first.
        labels: The day of each value, where they are known.
        baseline: What the recent nights are held against, None where data are insufficient.
        step: The last step for the worse that is told, None without one.
    """

    metric: str
    values: tuple[float, ...]
    label: Label
    labels: tuple[str, ...] = ()
    baseline: float | None = None
    step: Step | None = None

    @property
    def acts(self) -> bool:
        """True when somebody has to look."""
        return self.label is Label.REGRESSION or self.step is not None


def judge(metric: str, values: Sequence[float], policy: Policy | None = None) -> Trend:
    """Judge a series of nights with equal keys, oldest first.

    Raises:
        ValueError: for a value that is not finite, which no baseline may be formed of.
    """
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"{metric}: expected finite values, found {list(values)}")
    policy = policy or POLICIES.get(metric)
    series = tuple(values)
    if policy is None:
        return Trend(metric=metric, values=series, label=Label.NO_REGRESSION)
    earlier, recent = _split(series, policy)
    if len(earlier) < policy.least or not recent:
        return Trend(metric=metric, values=series, label=Label.INSUFFICIENT)
    baseline = policy.level(earlier)
    return Trend(
        metric=metric,
        values=series,
        label=_label([policy.violates(value, baseline) for value in recent], policy.confirmed),
        baseline=baseline,
        step=_step(series, policy),
    )


def _split(values: Sequence[float], policy: Policy) -> tuple[Sequence[float], Sequence[float]]:
    """Keep the recent nights apart, fewer of them while the history is short."""
    num_recent = min(RECENT, max(policy.confirmed, len(values) - policy.least))
    recent = values[-num_recent:] if len(values) > num_recent else ()
    earlier = values[: len(values) - len(recent)][-policy.window :]
    return earlier, recent


def _label(violations: Sequence[bool], confirmed: int) -> Label:
    if len(violations) >= confirmed and all(violations[-confirmed:]):
        return Label.REGRESSION
    run = longest = 0
    for violation in violations:
        run = run + 1 if violation else 0
        longest = max(longest, run)
    return Label.SUSPICIOUS if longest >= SUSPICIOUS else Label.NO_REGRESSION


def _step(values: Sequence[float], policy: Policy) -> Step | None:
    """Return the last step for the worse that stands out of the noise."""
    if not policy.step or len(values) < LEAST_STEP_NIGHTS or not _may_step(values, policy):
        return None
    last = _last(values)
    if last is None:
        return None
    worse = last.after > last.before if policy.better == "lower" else last.after < last.before
    large = abs(last.ratio - 1.0) >= policy.step and last.sigmas >= STEP_SIGMAS
    return last if worse and large and _holds(values[last.index :], last) else None


def _last(values: Sequence[float]) -> Step | None:
    """Return the last step; a level between two larger steps is looked at once more by itself.

    Some busy nights in a row are a step of their own, beside which the fit of the whole series
    takes a smaller one behind them for noise.
    """
    found = steps(values)
    if not found:
        return None
    last = found[-1]
    inner = steps(values[last.index :]) if last.confirmed >= LEAST_STEP_NIGHTS else ()
    return replace(inner[-1], index=last.index + inner[-1].index) if inner else last


def _holds(level: Sequence[float], step: Step) -> bool:
    """Tell a level from two busy nights in a row: almost all of its nights lie on its side."""
    middle = (step.before + step.after) / 2
    beyond = sum((value > middle) == (step.after > step.before) for value in level)
    return beyond >= LEVEL_SHARE * len(level)


def _may_step(values: Sequence[float], policy: Policy) -> bool:
    """Tell cheaply whether a step for the worse is possible at all.

    The exact fit costs a millisecond a series; a history of hundreds of scenarios has thousands of
    them, nearly all flat. A new level shows in the median of some number of last nights.
    """
    for length in (3, 4, 5, 7, 9, 12, 16, 21, 28, 37, 49):
        if length > len(values) - 3:
            break
        old, new = median(values[:-length]), median(values[-length:])
        rise = new - old if policy.better == "lower" else old - new
        if rise > abs(old) * policy.step * 0.6:
            return True
    return False
