"""What differs between two runs, split into what moved around them and what they did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from harness.record.environment import Environment
from harness.record.result import ScenarioResult
from harness.record.verdict import ExitCode
from reports.comparison.digest import Digest, Topic, digest
from reports.store import StoredRun

ABSENT = "absent"
"""Shown for a value that only the other run has."""

_OF_THE_MACHINE = ("host", "variables", "gpus")
"""Fields of the environment that are compared on their own terms."""

_OF_ONE_RUN = frozenset(
    {
        "MASTER_ADDR",
        "MASTER_PORT",
        "SLURM_JOB_ID",
        "SLURM_JOB_NODELIST",
        "SLURM_STEP_ID",
        "TORCHELASTIC_RUN_ID",
        "TRACEPARENT",
    }
)
"""Variables that every launch sets anew; that they differ says nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One value that differs.

    Attributes:
        item: Which value of the topic, such as ``cp_rank 1``.
    """

    topic: str
    item: str
    before: str
    after: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioChange:
    """A scenario that did not do the same in both runs.

    Attributes:
        behaviour: What it did differently.
        environment: Facts, overlays and scenario text that differ for it.
    """

    id: str
    behaviour: tuple[Change, ...]
    environment: tuple[Change, ...]

    @property
    def flipped(self) -> bool:
        """True when verdict or outcome differ."""
        return any(change.topic == Topic.VERDICT for change in self.behaviour)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs compared.

    Attributes:
        before: Name of the first run, after of the second.
        environment: What moved around the runs: versions, devices, variables, facts.
        scenarios: Scenarios that behaved differently, flipped verdicts first.
        only_before: Ids that only the first run has a result of.
        num_same: Scenarios that did the same.
    """

    before: str
    after: str
    environment: tuple[Change, ...]
    scenarios: tuple[ScenarioChange, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    num_same: int

    @property
    def equal(self) -> bool:
        """True when both runs did the same, whatever moved around them."""
        return not (self.scenarios or self.only_before or self.only_after)

    @property
    def exit_code(self) -> ExitCode:
        """0 when the runs behaved alike, 1 when they did not, 5 when they share nothing."""
        if not (self.scenarios or self.num_same):
            return ExitCode.NOTHING_RAN
        return ExitCode.OK if self.equal else ExitCode.CHECK_FAILED


def compare(
    before: StoredRun, after: StoredRun, *, names: tuple[str, str] | None = None
) -> Comparison:
    """Compare two runs scenario by scenario; ids make the pairs.

    Args:
        before: The run to compare with.
        after: The run in question.
        names: What to call the two; their folders' names by default.
    """
    ours = {result.id: result for result in before.results}
    theirs = {result.id: result for result in after.results}
    both = [name for name in theirs if name in ours]
    changes = [scenario_change(ours[name], theirs[name]) for name in both]
    shown = [change for change in changes if change.behaviour]
    shown.sort(key=lambda change: not change.flipped)
    labels = names or (before.folder.name, after.folder.name)
    return Comparison(
        before=labels[0],
        after=labels[1],
        environment=(*_environment(before, after), *_shared(changes)),
        scenarios=tuple(shown),
        only_before=tuple(name for name in ours if name not in theirs),
        only_after=tuple(name for name in theirs if name not in ours),
        num_same=len(both) - len(shown),
    )


def scenario_change(before: ScenarioResult, after: ScenarioResult) -> ScenarioChange:
    """Return what differs between two results of one scenario."""
    return ScenarioChange(
        id=after.id,
        behaviour=tuple(_behaviour(digest(before), digest(after))),
        environment=tuple(_facts(before, after)),
    )


def _behaviour(before: Digest, after: Digest) -> list[Change]:
    found = []
    for key in dict.fromkeys((*before.exact, *after.exact)):
        old, new = before.exact.get(key, ABSENT), after.exact.get(key, ABSENT)
        if old != new:
            found.append(Change(topic=key[0], item=key[1], before=old, after=new))
    for key, old_value in before.measured.items():
        new_value = after.measured.get(key)
        if new_value is not None and old_value.differs(new_value):
            found.append(
                Change(topic=key[0], item=key[1], before=old_value.text, after=new_value.text)
            )
    order = {topic: place for place, topic in enumerate(Topic)}
    return sorted(found, key=lambda change: order[Topic(change.topic)])


def _facts(before: ScenarioResult, after: ScenarioResult) -> list[Change]:
    old, new = before.last.proof, after.last.proof
    pairs = [
        ("fact", name, _text(old.facts.get(name)), _text(new.facts.get(name)))
        for name in sorted({*old.facts, *new.facts})
    ]
    for noun, ours, theirs in (
        ("overlays", old.overlays, new.overlays),
        ("shims", old.shims, new.shims),
        ("injected", old.injected, new.injected),
    ):
        pairs.append(("proof", noun, ", ".join(ours) or "none", ", ".join(theirs) or "none"))
    pairs.append(("proof", "provider", old.provider, new.provider))
    pairs.append(("scenario", "content hash", before.content_hash, after.content_hash))
    return [
        Change(topic=topic, item=item, before=first, after=second)
        for topic, item, first, second in pairs
        if first != second
    ]


def _shared(changes: Sequence[ScenarioChange]) -> list[Change]:
    """Facts that moved, each once, with the number of scenarios where they did not move in all."""
    counts: dict[Change, int] = {}
    for change in changes:
        for moved in change.environment:
            if moved.topic != "scenario":
                counts[moved] = counts.get(moved, 0) + 1
    edited = sum(any(m.topic == "scenario" for m in change.environment) for change in changes)
    found = [
        moved
        if number == len(changes)
        else Change(
            topic=moved.topic,
            item=f"{moved.item} (in {number} of {len(changes)} scenarios)",
            before=moved.before,
            after=moved.after,
        )
        for moved, number in counts.items()
    ]
    if edited:
        found.append(
            Change(topic="scenario", item="files", before="-", after=f"{edited} run otherwise")
        )
    return found


def _environment(before: StoredRun, after: StoredRun) -> list[Change]:
    if before.record is None or after.record is None:
        return []
    old, new = before.record, after.record
    pairs = [
        ("ranks", str(old.world_size), str(new.world_size)),
        ("nodes", str(old.num_nodes), str(new.num_nodes)),
        ("isolation", old.isolation, new.isolation),
    ]
    pairs += _versions(old.environment, new.environment)
    names = sorted({*old.environment.variables, *new.environment.variables} - _OF_ONE_RUN)
    pairs += [
        (
            f"variable {name}",
            old.environment.variables.get(name, ABSENT),
            new.environment.variables.get(name, ABSENT),
        )
        for name in names
    ]
    return [
        Change(topic="environment", item=item, before=first, after=second)
        for item, first, second in pairs
        if first != second
    ]


def _versions(old: Environment, new: Environment) -> list[tuple[str, str, str]]:
    pairs = [
        (field.name, _text(getattr(old, field.name)), _text(getattr(new, field.name)))
        for field in fields(Environment)
        if field.name not in _OF_THE_MACHINE
    ]
    return [*pairs, ("gpus", _gpus(old), _gpus(new))]


def _gpus(environment: Environment) -> str:
    names = sorted(f"{gpu.name} ({gpu.capability})" for gpu in environment.gpus)
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names)) or "none"


def _text(value: object) -> str:
    return "not found" if value is None else str(value)
