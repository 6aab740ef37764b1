"""``summary.json``: how a run ended in one small document, for scripts that need no evidence."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.record.verdict import Outcome, Verdict

SUMMARY_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioSummary:
    """One scenario's end.

    Attributes:
        plan: Plans that ran, ``-`` when no path was proved.
        kernels: Where the kernels came from: ``hardware``, ``modelled <release> <arch>``, ...
        overlap: Least tie-aware overlap of any rank, None without selection evidence.
        strict_overlap: Least strict overlap of any rank.
        duration_s: Time of all attempts together.
        attempts: Number of attempts.
        reason: Why the outcome needs somebody, in one line; empty where it does not.
        record: File of the result inside the run folder.
        rerun: Exact command that reruns it.
    """

    id: str
    content_hash: str
    outcome: Outcome
    verdict: Verdict
    secondary: tuple[Verdict, ...] = ()
    plan: str
    kernels: str
    overlap: float | None = None
    strict_overlap: float | None = None
    duration_s: float
    attempts: int
    reason: str = ""
    record: str
    rerun: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionSummary:
    """One thing to do.

    Attributes:
        kind: Such as ``unexpected fault``.
        scenario: Id of the scenario it is about, None for the whole run.
    """

    kind: str
    text: str
    scenario: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummaryDocument:
    """A run's end: what to do, counts, and a line on every scenario, most urgent first.

    Attributes:
        exit_code: None while the run is not over, or was killed.
        state: ``running``, ``finished``, ``interrupted``, ``killed``, or empty where nobody knows.
        scenarios_s: Time of all attempts of all scenarios, added up.
        wall_s: Time from start to end, None while the run is not over.
        outcomes: Number of scenarios per outcome.
        missing: Ids of scenarios that the run lists and that have no readable result.
        proves: What the run's kernels can and cannot prove, in sentences.
        documents: Files for people and for CI servers inside the run folder.
    """

    summary_version: int = SUMMARY_VERSION
    name: str
    exit_code: int | None = None
    exit_line: str
    state: str = ""
    started_at: str = ""
    finished_at: str | None = None
    scenarios_s: float
    wall_s: float | None = None
    outcomes: dict[str, int] = field(default_factory=dict)
    actions: tuple[ActionSummary, ...] = ()
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    proves: tuple[str, ...] = ()
    scenarios: tuple[ScenarioSummary, ...] = ()
    documents: tuple[str, ...] = ()
