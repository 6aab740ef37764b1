"""Accepted numbers of a key: a file that changes only when somebody accepts the difference."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.record.files import RecordFileError, read_record, write_record
from reports.history.night import Night, NightKey
from reports.history.policy import POLICIES

BASELINES = "baselines"
"""Folder inside a store."""


class BaselineError(ValueError):
    """A night cannot become a baseline, or a baseline cannot be read; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """Accepted numbers.

    Attributes:
        key: What they were measured on, versions included.
        night: Folder of the run they come from, and when it was.
        values: Scenario to metric to value.
    """

    schema_version: int = 1
    key: NightKey
    night: str
    started_at: str
    values: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A number that would change, or that is beyond what the baseline allows."""

    scenario: str
    metric: str
    before: float | None
    after: float | None
    violates: bool

    @property
    def text(self) -> str:
        """One line."""
        old = "absent" if self.before is None else f"{self.before:.6g}"
        new = "absent" if self.after is None else f"{self.after:.6g}"
        worse = " (worse than the policy allows)" if self.violates else ""
        return f"{self.scenario}: {self.metric}: {old} -> {new}{worse}"


def baseline_path(store: Path, key: NightKey) -> Path:
    """Return the file of a key's baseline."""
    digest = hashlib.sha256(key.text.encode()).hexdigest()[:12]
    return store / BASELINES / f"{digest}.json"


def baseline_of(night: Night) -> Baseline:
    """Return what a night would make the baseline.

    Raises:
        BaselineError: if it was not good, or holds a number that is not finite.
    """
    if not night.good:
        raise BaselineError(
            f"{night.folder}: expected a whole night with exit code 0, found exit code "
            f"{night.exit_code} with {len(night.partial)} scenarios not judged"
        )
    values = {
        entry.id: {name: value for name, value in entry.metrics.items() if name in POLICIES}
        for entry in night.entries
        if entry.metrics
    }
    for scenario, metrics in values.items():
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise BaselineError(f"{scenario}: {name}: expected a finite number, found {value}")
    return Baseline(key=night.key, night=night.folder, started_at=night.started_at, values=values)


def read_baseline(store: Path, key: NightKey) -> Baseline | None:
    """Return the baseline of a key, None without one.

    Raises:
        BaselineError: if there is one that cannot be read, or that holds no finite numbers.
    """
    path = baseline_path(store, key)
    if not path.exists():
        return None
    try:
        baseline = read_record(path, Baseline)
    except RecordFileError as error:
        raise BaselineError(str(error)) from error
    for scenario, metrics in baseline.values.items():
        for name, value in metrics.items():
            if not math.isfinite(value):
                raise BaselineError(f"{path}: {scenario}: {name}: {value} is not finite")
    return baseline


def accept(store: Path, baseline: Baseline) -> Path:
    """Make a baseline the one of its key.

    Raises:
        OSError: if the store cannot be written to.
    """
    path = baseline_path(store, baseline.key)
    write_record(path, baseline)
    return path


def differences(old: Baseline | None, new: Baseline) -> Iterator[Difference]:
    """Return what accepting ``new`` would change."""
    before = {} if old is None else old.values
    for scenario in dict.fromkeys((*before, *new.values)):
        ours, theirs = before.get(scenario, {}), new.values.get(scenario, {})
        for metric in dict.fromkeys((*ours, *theirs)):
            first, second = ours.get(metric), theirs.get(metric)
            if first != second:
                yield Difference(
                    scenario=scenario,
                    metric=metric,
                    before=first,
                    after=second,
                    violates=_violates(metric, first, second),
                )


def beyond(baseline: Baseline, night: Night) -> tuple[Difference, ...]:
    """Return the numbers of a night that its baseline does not allow."""
    found = []
    for entry in night.entries:
        for metric, accepted in baseline.values.get(entry.id, {}).items():
            value = entry.metrics.get(metric)
            if value is not None and _violates(metric, accepted, value):
                found.append(
                    Difference(
                        scenario=entry.id,
                        metric=metric,
                        before=accepted,
                        after=value,
                        violates=True,
                    )
                )
    return tuple(found)


def _violates(metric: str, before: float | None, after: float | None) -> bool:
    policy = POLICIES.get(metric)
    if policy is None or before is None or after is None:
        return False
    return policy.violates(after, before)
