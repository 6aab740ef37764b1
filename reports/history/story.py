"""One night against the last good one: what needs action, in order, or one quiet line."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date

from harness.record.verdict import ExitCode, Outcome, Verdict
from reports.history.night import Entry, Night, is_hardware, is_modelled
from reports.history.owners import Owner, Ownership, ownership
from reports.history.policy import Label, Trend
from reports.history.quarantine import Quarantined, covering
from reports.text import counted


class Matter(enum.StrEnum):
    """What a finding is about, most urgent first."""

    FAULT = "unexpected fault"
    WRONG = "unexpected verdict"
    EXPIRED = "quarantine expired"
    FLIPPED = "flipped verdict"
    FIXED = "known defect fixed"
    PATH = "changed path"
    MODELLED = "hardware turned modelled"
    LOST = "lost overlap"
    SLOWER = "slower"
    LARGER = "more memory"
    GONE = "gone"
    QUARANTINED = "in quarantine"


_QUIET = (Matter.QUARANTINED,)
"""Matters that nobody has to act on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that a night shows.

    Attributes:
        text: What, in one sentence.
        trend: The series behind it, where it is about a number.
    """

    matter: Matter
    scenario: str
    text: str
    ownership: Ownership
    trend: Trend | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """A night told.

    Attributes:
        reference: The night it is compared with, None when there was none.
        like_with_like: False where the two nights' keys differ; ``moved`` then says in what.
        moved: Versions and facts that differ, as (before, after).
        labels: Number of trends per label.
    """

    night: Night
    reference: Night | None
    moved: dict[str, tuple[str, str]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    labels: dict[Label, int] = field(default_factory=dict)

    @property
    def like_with_like(self) -> bool:
        """True when both nights have the same key."""
        return self.reference is not None and self.reference.key == self.night.key

    @property
    def acting(self) -> tuple[Finding, ...]:
        """Findings that somebody has to act on."""
        return tuple(found for found in self.findings if found.matter not in _QUIET)

    @property
    def regressions(self) -> tuple[Finding, ...]:
        """Findings that the history alone shows."""
        numbers = (Matter.SLOWER, Matter.LARGER, Matter.LOST)
        return tuple(found for found in self.findings if found.matter in numbers)

    @property
    def quiet(self) -> bool:
        """True when the night is told in one line."""
        return not (self.acting or self.moved or self.night.partial)

    @property
    def headline(self) -> str:
        """One line."""
        night = self.night
        if self.reference is None:
            start = "first night of this history"
        elif self.acting:
            start = f"{counted(len(self.acting), 'finding')} to act on"
        elif self.moved:
            start = "nothing to act on, though the environment moved"
        else:
            start = f"nothing happened since {self.reference.started_at[:10]}"
        return f"{start}: {counted(len(night.entries), 'scenario')}{_partial(night)}"

    def by_owner(self) -> dict[Owner, tuple[Finding, ...]]:
        """Return the findings to act on by likely owner."""
        owners = dict.fromkeys(found.ownership.owner for found in self.acting)
        return {
            owner: tuple(f for f in self.acting if f.ownership.owner is owner) for owner in owners
        }


def _partial(night: Night) -> str:
    if not night.partial:
        return ""
    return f", a partial night: {len(night.partial)} of {night.num_asked} were not judged"


def last_good(nights: Sequence[Night], night: Night) -> Night | None:
    """Return the last good night before ``night``: of the same key, else of the same suite.

    Args:
        nights: Earlier nights, oldest first.
        night: The night in question.
    """
    earlier = [n for n in nights if n.good and n.key.suite == night.key.suite]
    same = [n for n in earlier if n.key == night.key]
    alike = [n for n in earlier if n.key.arch == night.key.arch]
    return (same or alike or earlier or [None])[-1]  # type: ignore[list-item]


def tell(
    night: Night,
    reference: Night | None,
    trends: Mapping[str, Sequence[Trend]],
    *,
    quarantine: Iterable[Quarantined] = (),
    today: date | None = None,
) -> Story:
    """Tell a night.

    Args:
        night: The night in question.
        reference: The night to compare with, see ``last_good``; with its entries.
        trends: Scenario to its judged trends, tonight included.
        quarantine: Entries that excuse scenarios.
        today: Day on which they have to hold; that of the night by default.
    """
    day = today or date.fromisoformat(night.started_at[:10])
    entries = tuple(quarantine)
    moved = {} if reference is None else _moved(night, reference)
    findings: list[Finding] = []
    for entry in night.entries:
        old = None if reference is None else reference.by_id.get(entry.id)
        found = list(_entry_findings(entry, old, moved))
        found += _trend_findings(entry, trends.get(entry.id, ()), moved)
        findings += _excused(found, entry.id, covering(entries, entry.id), day)
    findings += _gone(night, reference)
    order = {matter: place for place, matter in enumerate(Matter)}
    findings.sort(key=lambda item: order[item.matter])
    return Story(
        night=night,
        reference=reference,
        moved=moved,
        findings=tuple(findings),
        labels=_labels(trends),
    )


def _labels(trends: Mapping[str, Sequence[Trend]]) -> dict[Label, int]:
    flat = [trend.label for found in trends.values() for trend in found]
    return {label: flat.count(label) for label in Label if label in flat}


def _moved(night: Night, reference: Night) -> dict[str, tuple[str, str]]:
    """Versions of the key, then facts that moved in every scenario that has them."""
    moved = night.key.moved(reference.key)
    old = reference.by_id
    pairs: dict[str, set[tuple[str, str]]] = {}
    for entry in night.entries:
        before = old.get(entry.id)
        if before is None or entry.verdict is Verdict.NOT_RUN:
            continue
        for name in entry.facts.keys() & before.facts.keys():
            pairs.setdefault(name, set()).add((before.facts[name], entry.facts[name]))
    for name in sorted(pairs):
        changed = {pair for pair in pairs[name] if pair[0] != pair[1]}
        if changed and name not in moved:
            moved[name] = next(iter(changed)) if len(changed) == 1 else _several(changed)
    return moved


def _several(pairs: set[tuple[str, str]]) -> tuple[str, str]:
    return (
        ", ".join(sorted({old for old, _ in pairs})),
        ", ".join(sorted({new for _, new in pairs})),
    )


def _entry_findings(
    entry: Entry, old: Entry | None, moved: dict[str, tuple[str, str]]
) -> Iterable[Finding]:
    owner = ownership(entry, moved)

    def finding(matter: Matter, text: str) -> Finding:
        return Finding(matter=matter, scenario=entry.id, text=text, ownership=owner)

    tail = f" ({entry.fault})" if entry.fault else ""
    tail += f"; faulted in {entry.fault_rate}" if entry.fault_rate else ""
    if entry.outcome is Outcome.UNEXPECTED:
        matter = Matter.FAULT if entry.faulted else Matter.WRONG
        before = f", was {old.verdict}" if old is not None and old.verdict != entry.verdict else ""
        yield finding(matter, f"{entry.verdict}{before}{tail}")
    elif entry.outcome is Outcome.FIXED:
        before = f", was {old.verdict}" if old is not None else ""
        yield finding(Matter.FIXED, f"{entry.verdict}{before}: remove the known rule")
    elif old is not None and old.verdict != entry.verdict:
        yield finding(
            Matter.FLIPPED, f"{old.verdict} ({old.outcome}) -> {entry.verdict} ({entry.outcome})"
        )
    if old is None or Verdict.NOT_RUN in (entry.verdict, old.verdict):
        return
    if (old.plan, old.scorer) != (entry.plan, entry.scorer):
        before_path, now = f"{old.plan} by {old.scorer}", f"{entry.plan} by {entry.scorer}"
        yield finding(Matter.PATH, f"{before_path} -> {now}")
    if is_hardware(old) and is_modelled(entry):
        yield finding(Matter.MODELLED, f"{old.origin} -> {entry.origin}")
    overlap, before_overlap = entry.metrics.get("overlap"), old.metrics.get("overlap")
    same_verdict = old.verdict == entry.verdict
    if overlap is None or before_overlap is None or not same_verdict:
        return
    if overlap < before_overlap:
        yield finding(Matter.LOST, f"overlap {before_overlap:.6f} -> {overlap:.6f}")


def _trend_findings(
    entry: Entry, trends: Sequence[Trend], moved: dict[str, tuple[str, str]]
) -> list[Finding]:
    found = []
    for trend in trends:
        if not trend.acts or trend.metric in ("pass", "overlap"):
            continue
        matter = Matter.LARGER if trend.metric.endswith("mib") else Matter.SLOWER
        found.append(
            Finding(
                matter=matter,
                scenario=entry.id,
                text=_trend_text(trend),
                ownership=ownership(entry, moved),
                trend=trend,
            )
        )
    return found


def _trend_text(trend: Trend) -> str:
    if trend.step is not None:
        step = trend.step
        return (
            f"{trend.metric}: a step of {100 * (step.ratio - 1):+.1f} % "
            f"{counted(step.confirmed, 'night')} ago ({step.before:.4g} -> {step.after:.4g}, "
            f"{step.sigmas:.1f} times the noise)"
        )
    assert trend.baseline is not None, "a regression is judged against a baseline"
    return f"{trend.metric}: {trend.values[-1]:.4g}, was {trend.baseline:.4g} ({trend.label})"


def _excused(
    found: list[Finding], scenario: str, entry: Quarantined | None, today: date
) -> list[Finding]:
    """Tell a quarantined scenario all the same; an expired entry is a finding of its own."""
    if entry is None or not (found or entry.expired(today)):
        return found
    told = "; ".join(item.text for item in found) or "as expected"
    expired = entry.expired(today)
    until = f"{'expired' if expired else 'until'} {entry.expires.isoformat()}"
    return [
        Finding(
            matter=Matter.EXPIRED if expired else Matter.QUARANTINED,
            scenario=scenario,
            text=f"{told}; {entry.reason} ({entry.owner}, {entry.link}, {until})",
            ownership=Ownership(owner=Owner.UNKNOWN, reason=f"quarantined for {entry.owner}"),
        )
    ]


def _gone(night: Night, reference: Night | None) -> list[Finding]:
    if reference is None:
        return []
    tonight = {entry.id for entry in night.entries} | set(night.partial)
    unknown = Ownership(owner=Owner.UNKNOWN, reason="the suite no longer holds it")
    return [
        Finding(matter=Matter.GONE, scenario=entry.id, text="no longer run", ownership=unknown)
        for entry in reference.entries
        if entry.id not in tonight
    ]


def exit_code(story: Story, *, fail_on_regression: bool) -> ExitCode:
    """Return the exit code of a night, quarantined scenarios excused."""
    acting = {found.matter for found in story.acting}
    entries = {entry.id: entry for entry in story.night.entries}
    unexpected = {
        entries[found.scenario].verdict
        for found in story.acting
        if found.matter in (Matter.FAULT, Matter.WRONG)
    }
    if not story.night.entries:
        return ExitCode.NOTHING_RAN
    if Verdict.HARNESS_ERROR in unexpected:
        return ExitCode.HARNESS_ERROR
    if Matter.FAULT in acting:
        return ExitCode.FAULT
    if acting & {Matter.WRONG, Matter.FIXED, Matter.EXPIRED}:
        return ExitCode.CHECK_FAILED
    if fail_on_regression and story.regressions:
        return ExitCode.REGRESSION
    return ExitCode.OK
