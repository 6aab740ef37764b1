"""What a run needs said, computed once from its records and shown by every document."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from harness.record.ending import results_code
from harness.record.files import RESULTS_FOLDER, safe_name
from harness.record.result import RunRecord, ScenarioResult
from harness.record.verdict import FAULTS, ExitCode, Outcome, Verdict
from harness.scenario.spec import Published
from reports.action import Action
from reports.by_release import ReleaseRow, by_release
from reports.finding import Finding
from reports.findings import findings, known_text
from reports.overlap import RankOverlap, rank_overlaps, spread, stages
from reports.proof import RunProof, models_text, run_proof
from reports.published import published
from reports.store import StoredRun
from reports.text import counted
from reports.windows import window_text


class Need(enum.StrEnum):
    """How much a result needs the reader; declared most urgent first."""

    FAULT = "fault"
    """It crashed, hung, faulted, could not start, or the harness failed, unexpectedly."""
    WRONG = "wrong"
    """Another unexpected verdict."""
    FIXED = "fixed"
    """A known defect is gone: a rule has to be removed."""
    KNOWN = "known"
    """A known defect, as described."""
    NOT_RUN = "not_run"
    """A capability is missing."""
    EXPECTED = "expected"
    """As expected; nothing to do."""

    @property
    def acts(self) -> bool:
        """True when somebody has to do something, so that a failure block is due."""
        return self in (Need.FAULT, Need.WRONG, Need.FIXED)


_ORDER = {need: place for place, need in enumerate(Need)}
_JUDGED_CODES = frozenset(
    {
        ExitCode.OK,
        ExitCode.CHECK_FAILED,
        ExitCode.HARNESS_ERROR,
        ExitCode.FAULT,
        ExitCode.NOTHING_RAN,
    }
)
"""Exit codes that follow from the results alone."""


def need_of(result: ScenarioResult) -> Need:
    """Return how much a result needs the reader."""
    if result.outcome is Outcome.UNEXPECTED:
        urgent = result.verdict in FAULTS or result.verdict is Verdict.HARNESS_ERROR
        return Need.FAULT if urgent else Need.WRONG
    return Need(result.outcome.value)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioView:
    """One result, condensed for showing.

    Attributes:
        plan: Plans that ran, ``-`` when no path was proved.
        kernels: Where the kernels came from, always ``hardware`` or ``modelled ...`` by name.
        ranks: Overlap per ``cp_rank`` at the stage that is shown.
        other_ranks: The same at every other stage judged.
        spread: Over what each rank's least overlap is taken, empty for a single record.
        duration_s: Time of all attempts together.
        known: One line on the known defect, empty for other outcomes.
        window: One line on the keys that the scoring kernel showed, empty without evidence.
        published: Figures that others published for the scenario.
    """

    result: ScenarioResult
    need: Need
    plan: str
    kernels: str
    ranks: tuple[RankOverlap, ...]
    other_ranks: tuple[tuple[RankOverlap, ...], ...]
    spread: str
    duration_s: float
    findings: tuple[Finding, ...]
    known: str
    window: str
    published: tuple[Published, ...]

    @property
    def worst_rank(self) -> RankOverlap | None:
        """The rank with the least tie-aware overlap, None without selection evidence."""
        return min(self.ranks, key=lambda rank: (rank.overlap, rank.strict), default=None)

    @property
    def least_strict(self) -> float | None:
        """Least strict overlap of any rank."""
        return min((rank.strict for rank in self.ranks), default=None)


def view(result: ScenarioResult) -> ScenarioView:
    """Condense one result."""
    attempt = result.last
    shown, *others = stages(attempt.selections) or ("",)
    need = need_of(result)
    return ScenarioView(
        result=result,
        need=need,
        plan=", ".join(sorted({path.plan for path in attempt.paths})) or "-",
        kernels=models_text(attempt.proof),
        ranks=rank_overlaps(attempt.selections, shown),
        other_ranks=tuple(rank_overlaps(attempt.selections, stage) for stage in others),
        spread=spread(attempt.selections),
        duration_s=sum(attempt.duration_s for attempt in result.attempts),
        findings=findings(result),
        known=known_text(result) if need is Need.KNOWN else "",
        window=window_text(attempt.windows),
        published=published(result),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """What a run needs said.

    Attributes:
        scenarios: All results, those that need the reader most first.
        releases: Results by modelled release and architecture; empty where there is only one.
        outcomes: Number of results per outcome, in order of need, zeros left out.
        verdicts: Number of results per outcome and verdict, in the same order.
        missing: Ids of scenarios without a readable result.
        exit_code: The run's exit code; None while the run is not over, or was killed.
        exit_line: The last line to show.
        folder: The run folder, where there is one.
        changes: What a comparison with another run adds to what has to be done.
    """

    record: RunRecord | None
    scenarios: tuple[ScenarioView, ...]
    releases: tuple[ReleaseRow, ...]
    outcomes: dict[Outcome, int]
    verdicts: dict[tuple[Outcome, Verdict], int]
    proof: RunProof
    missing: tuple[str, ...]
    warnings: tuple[str, ...]
    exit_code: int | None
    exit_line: str
    folder: Path | None = None
    changes: tuple[Action, ...] = ()

    @property
    def duration_s(self) -> float:
        """Time of all attempts of all scenarios, added up."""
        return sum(scenario.duration_s for scenario in self.scenarios)

    @property
    def wall_s(self) -> float | None:
        """Time from the run's start to its end, None while it is not over."""
        record = self.record
        if record is None or record.finished_at is None:
            return None
        try:
            begin, end = map(datetime.fromisoformat, (record.started_at, record.finished_at))
            return max(0.0, (end - begin).total_seconds())
        except (ValueError, TypeError):
            # Times of another version, or one with and one without its zone.
            return None

    @property
    def failing(self) -> tuple[ScenarioView, ...]:
        """Scenarios for which somebody has to do something."""
        return tuple(scenario for scenario in self.scenarios if scenario.need.acts)


def summarise(
    record: RunRecord | None,
    results: Sequence[ScenarioResult],
    *,
    warnings: Sequence[str] = (),
    folder: Path | None = None,
    changes: Sequence[Action] = (),
) -> RunSummary:
    """Compute what a run needs said.

    Args:
        record: The run record; its exit code, once there, is the run's.
        results: Results in the order they were run.
        warnings: What the reader must know of the records themselves.
        folder: The run folder, to name files in.
        changes: What a comparison with another run adds to what has to be done.
    """
    views = [view(result) for result in results]
    # Python's sort is stable: within a need and verdict the order of the run stays.
    views.sort(key=lambda v: (_ORDER[v.need], v.result.verdict.rank if v.need.acts else 0))
    seen = {result.id for result in results}
    listed = () if record is None else record.scenario_ids
    missing = tuple(name for name in listed if name not in seen)
    judged = results_code(results)
    return RunSummary(
        record=record,
        scenarios=tuple(views),
        releases=by_release(results),
        outcomes=dict(Counter(item.result.outcome for item in views)),
        verdicts=dict(Counter((item.result.outcome, item.result.verdict) for item in views)),
        proof=run_proof(results),
        missing=missing,
        warnings=(*warnings, *_code_warnings(record, judged, missing)),
        exit_code=None if record is None else record.exit_code,
        exit_line=_exit_line(record, judged, missing),
        folder=folder,
        changes=tuple(changes),
    )


def summarise_stored(run: StoredRun, changes: Sequence[Action] = ()) -> RunSummary:
    """Compute what a stored run needs said."""
    return summarise(
        run.record, run.results, warnings=run.warnings, folder=run.folder, changes=changes
    )


def _code_warnings(
    record: RunRecord | None, judged: ExitCode, missing: tuple[str, ...]
) -> tuple[str, ...]:
    """A code that the complete results do not bear out is never shown without saying so."""
    if record is None or record.exit_code is None or missing:
        return ()
    if record.exit_code not in _JUDGED_CODES or record.exit_code == judged:
        return ()
    return (f"run.json says exit code {record.exit_code}, the results make it {int(judged)}",)


def _exit_line(record: RunRecord | None, judged: ExitCode, missing: tuple[str, ...]) -> str:
    if record is None:
        return (
            "exit code unknown: run.json is missing or cannot be read; the results that are there "
            f"make it {int(judged)}: {judged.meaning}"
        )
    if record.exit_code is None:
        total = len(record.scenario_ids)
        done = f"{total - len(missing)} of {counted(total, 'scenario')} have a result"
        return f"exit code unknown: {_UNFINISHED.get(record.state, _UNFINISHED[''])} ({done})"
    return f"exit code {record.exit_code}: {_meaning(record)}"


_UNFINISHED = {
    "": "the run is not over, or was killed",
    "running": "the run is not over",
    "interrupted": "the run was interrupted",
    "killed": "the run was killed",
}
"""What to say of a run without an exit code, by its recorded state."""


def _meaning(record: RunRecord) -> str:
    if record.exit_meaning:
        return record.exit_meaning
    try:
        return ExitCode(record.exit_code or 0).meaning
    except ValueError:
        return "not a code of this harness version"


def missing_text(summary: RunSummary, scenario_id: str) -> str:
    """Say why a scenario that the run lists has no result."""
    file = f"{RESULTS_FOLDER}/{safe_name(scenario_id)}.json"
    damaged = next((text for text in summary.warnings if text.startswith(f"{file}: ")), None)
    if damaged is not None:
        return f"no result: {damaged}"
    over = summary.exit_code is not None and summary.exit_code not in _CUT_SHORT
    if summary.record is None or over:
        return f"no result: {file} is not there"
    return "no result: the run did not come to it"


_CUT_SHORT = (ExitCode.INTERRUPTED, ExitCode.TERMINATED, ExitCode.HARNESS_ERROR)
"""Exit codes of runs that may have ended before their last scenario."""


def totals_line(summary: RunSummary) -> str:
    """Count results per outcome and verdict; add the time up, beside that of the whole run."""
    parts = []
    for outcome, number in summary.outcomes.items():
        verdicts = ", ".join(
            f"{count} {verdict}"
            for (of, verdict), count in summary.verdicts.items()
            if of is outcome and verdict is not Verdict.NOT_RUN
        )
        parts.append(f"{number} {outcome}" + (f" ({verdicts})" if verdicts else ""))
    if summary.missing:
        parts.append(f"{len(summary.missing)} without a result")
    total = counted(len(summary.scenarios) + len(summary.missing), "scenario")
    wall = "" if summary.wall_s is None else f", {summary.wall_s:.1f} s from start to end"
    time = f"{summary.duration_s:.1f} s in scenarios{wall}"
    return f"{total}: {', '.join(parts) or 'none has a result'}; {time}"
