"""Attempts that have files but no result, judged at last: what a killed run leaves behind.

Needs no torch and no rank: the plan, the leader's journals and the ranks' journals are enough.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from harness.record.files import RUN_FILE, RecordFileError, read_record, result_path, safe_name
from harness.record.result import (
    Attempt,
    RankOutcome,
    RunRecord,
    ScenarioResult,
)
from harness.runtime import commands
from harness.runtime.attempts import Executed
from harness.runtime.ends import AttemptEnds, RankEnd, read_ends
from harness.runtime.journal import JournalContent, read_journal
from harness.runtime.options import JUDGE, Isolation, Options
from harness.runtime.plan import Planned
from harness.runtime.plan_file import RunPlan, read_plan
from harness.runtime.run_folder import RunFolder
from harness.runtime.stacks import stack_file, waits_in_collective
from harness.runtime.verdicts import Verdicts

KILLED = "the run was killed while it ran"
ENDED = "the run ended while it ran"


@dataclass(frozen=True, kw_only=True, slots=True)
class Recovered:
    """A run folder brought up to date.

    Attributes:
        record: ``run.json``, None when it cannot be read.
        results: By scenario id, those that are there or could be made.
        found: Ids of the scenarios whose result was made or extended just now.
    """

    plan: RunPlan
    record: RunRecord | None
    results: dict[str, ScenarioResult]
    found: tuple[str, ...] = ()


def recover(folder: Path) -> Recovered:
    """Judge what has no verdict yet and write the results; a run without an end is marked killed.

    Nobody else may write the folder meanwhile.

    Raises:
        PlanError: if the folder holds no plan.
        OSError: if it cannot be written.
    """
    plan = read_plan(folder)
    record = _read(folder / RUN_FILE, RunRecord)
    over = record is not None and record.exit_code is not None
    verdicts = _verdicts(plan.options)
    results: dict[str, ScenarioResult] = {}
    found = []
    for item in plan.scenarios:
        result = _read(result_path(folder, item.scenario.id), ScenarioResult)
        attempts = result.attempts if result is not None else ()
        more = tuple(
            _attempt(folder, plan, item, number, verdicts, ENDED if over else KILLED)
            for number in _numbers(folder, item)
            if all(attempt.number != number for attempt in attempts)
        )
        if more:
            rerun = commands.rerun_scenario(plan.world, plan.options, item.file, item.scenario.id)
            attempts = tuple(sorted((*attempts, *more), key=lambda attempt: attempt.number))
            result = verdicts.result(item, attempts, rerun)
            RunFolder(path=folder).write_result(result)
            found.append(item.scenario.id)
        if result is not None:
            results[item.scenario.id] = result
    if record is not None and not over and record.state != "killed":
        record = replace(record, state="killed")
        RunFolder(path=folder).write_run(record)
    return Recovered(plan=plan, record=record, results=results, found=tuple(found))


def _verdicts(options: Options) -> Verdicts:
    """Return the run's judge, or the usual one where the run's is not to be found any more."""
    try:
        return Verdicts(options.judge, options.inject)
    except ImportError:
        return Verdicts(JUDGE, options.inject)


def _read[T](path: Path, cls: type[T]) -> T | None:
    with contextlib.suppress(RecordFileError):
        return read_record(path, cls)
    return None


def _numbers(folder: Path, item: Planned) -> Iterator[int]:
    """Return the numbers of the attempts that have a folder."""
    places = folder / "ranks" / safe_name(item.scenario.id)
    names = [path.name for path in places.glob("*") if path.is_dir()]
    yield from sorted(int(name) for name in names if name.isdecimal())


def _attempt(
    folder: Path, plan: RunPlan, item: Planned, number: int, verdicts: Verdicts, reason: str
) -> Attempt:
    place = folder / "ranks" / safe_name(item.scenario.id) / str(number)
    ends = read_ends(place)
    num_ranks = ends.begin.num_ranks if ends.begin is not None else item.num_ranks
    journals = tuple(
        read_journal(place / f"rank{rank}.jsonl", global_rank=rank) for rank in range(num_ranks)
    )
    return verdicts.attempt(item, number, _executed(folder, plan, place, ends, journals, reason))


def _executed(
    folder: Path,
    plan: RunPlan,
    place: Path,
    ends: AttemptEnds,
    journals: tuple[JournalContent, ...],
    reason: str,
) -> Executed:
    begin, end = ends.begin, ends.end
    started_at = begin.started_at if begin is not None else ""
    isolation: Isolation = begin.isolation if begin is not None else "scenario"
    if end is not None:
        return Executed(
            ranks=end.ranks,
            journals=journals,
            started_at=started_at,
            duration_s=end.duration_s,
            isolation=isolation,
            notes=end.notes,
            shared_with=tuple(p for p in plan.scenarios if p.scenario.id in end.shared_with),
            core_dumps=end.core_dumps,
            cut_short=end.cut_short,
        )
    ranks = tuple(
        _outcome(content, ends.ranks.get(content.global_rank), place, folder)
        for content in journals
    )
    begins = [j.phases[0].begin_s for j in journals if j.phases]
    lasts = [j.last_s for j in journals if j.last_s is not None]
    return Executed(
        ranks=ranks,
        journals=journals,
        started_at=started_at,
        duration_s=max(lasts) - min(begins) if begins and lasts else 0.0,
        isolation=isolation,
        cut_short=reason,
    )


def _outcome(
    content: JournalContent, end: RankEnd | None, place: Path, folder: Path
) -> RankOutcome:
    """Return how a rank ended; one that nobody saw end went down with the run."""
    status = end.status if end is not None else None
    stacks = str(place / f"rank{content.global_rank}.stacks")
    ended_s = end.ended_s if end is not None else content.last_s
    return RankOutcome(
        global_rank=content.global_rank,
        host=content.host,
        pid=content.pid,
        exit_code=status if status is not None and status >= 0 else None,
        signal=-status if status is not None and status < 0 else None,
        ended_by_harness=end.killed if end is not None else not content.completed,
        deadline=end.deadline if end is not None else None,
        last_phase=content.last_phase,
        last_line=content.last_line,
        completed=content.completed,
        exception=content.exception,
        process_state=end.state if end is not None else None,
        waiting_in_collective=waits_in_collective(stacks, content.collectives),
        stacks=stack_file(stacks, folder),
        ended_s=content.exception_s if content.exception_s is not None else ended_s,
        phases=content.phases,
        last_collective=content.collectives[-1] if content.collectives else None,
        peak_rss_bytes=content.peak_rss_bytes,
        node_lost=end.lost if end is not None else None,
    )
