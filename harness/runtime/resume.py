"""Finishing a run that was killed, interrupted, or ran out of disk: what may go on, and with what.

Everything that was asked for stands in the run's ``plan.json``; here it is held against what is
there now, before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

from harness.record.environment import Environment
from harness.record.files import RUN_FILE, RecordFileError, read_record, result_path
from harness.record.result import RunRecord, ScenarioResult
from harness.runtime.devices import num_gpus
from harness.runtime.options import Options, UsageError
from harness.runtime.plan import Planned, ranks_flag
from harness.runtime.plan_file import PlanError, RunPlan, read_plan
from harness.runtime.recovery import recover
from harness.runtime.run_folder import RunFolder, RunFolderError
from harness.runtime.run_lock import RunLock, RunLockedError, live_holder
from harness.runtime.storage import storage_problem
from harness.runtime.world import World

_NOT_COMPARED = ("host", "num_cpus", "variables", "image", "gpus")
"""Facts of the environment that may differ without a word; GPUs are compared by name below."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resumed:
    """A run folder that this process writes from now on."""

    folder: RunFolder
    lock: RunLock
    plan: RunPlan
    record: RunRecord
    results: dict[str, ScenarioResult]


def attempts_due(item: Planned, result: ScenarioResult | None) -> int:
    """Return how many attempts of a scenario are still to be made.

    Attempts that the run cut short say nothing of the scenario and are made again.
    """
    if result is None:
        return 1 if item.missing is not None else item.repeat
    made = sum(attempt.cut_short is None for attempt in result.attempts)
    if item.missing is not None and made:
        return 0
    return max(0, item.repeat - made)


def attempts_due_of(folder: Path, item: Planned) -> int:
    """Return how many attempts are still to be made, by the result that is on disk."""
    try:
        result = read_record(result_path(folder, item.scenario.id), ScenarioResult)
    except RecordFileError:
        result = None
    return attempts_due(item, result)


def plan_to_resume(world: World, folder: Path) -> RunPlan:
    """Return the plan of a run that can go on here; nothing is written.

    Raises:
        UsageError: with one line for each thing in the way.
    """
    try:
        plan = read_plan(folder)
    except PlanError as error:
        raise UsageError([f"--resume {error}"]) from error
    holder = live_holder(folder)
    problems = []
    if holder is not None:
        problems.append(
            f"--resume {folder}: expected a run that nobody writes, found that {holder} does; wait "
            "for its end, or end it"
        )
    gpus = num_gpus()
    for item in plan.scenarios:
        if not attempts_due_of(folder, item) or item.missing is not None:
            continue
        problems += _in_the_way(item, world, gpus)
    if problems:
        raise UsageError(list(dict.fromkeys(problems)))
    return plan


def _in_the_way(item: Planned, world: World, gpus: int) -> Iterator[str]:
    if item.num_ranks > world.world_size:
        yield (
            f"{item.scenario.id} was planned on {item.num_ranks} ranks, this run has "
            f"{world.world_size}; start it with {ranks_flag(world, item.num_ranks)}"
        )
    elif item.device == "cuda" and not gpus:
        yield (
            f"{item.scenario.id} was planned on a GPU, of which this node has none; resume the run "
            "where it was started"
        )


def resumed_options(plan: RunPlan, options: Options) -> Options:
    """Return the options of the plan with what may be said anew."""
    return replace(
        plan.options,
        resume=options.resume,
        dry_run=options.dry_run,
        jobs=options.jobs,
        at_most=options.at_most,
        folder_file=options.folder_file,
        budget=options.budget,
    )


def differences(before: Environment, now: Environment) -> Iterator[str]:
    """Return a sentence for each version, build or device that is not what the run started with."""
    for item in fields(Environment):
        old, new = getattr(before, item.name), getattr(now, item.name)
        if item.name not in _NOT_COMPARED and old != new:
            yield _moved(item.name, str(old), str(new))
    gpus = [sorted(gpu.name for gpu in one.gpus) for one in (before, now)]
    if gpus[0] != gpus[1]:
        yield _moved("GPUs", ", ".join(gpus[0]) or "none", ", ".join(gpus[1]) or "none")


def _moved(name: str, old: str, new: str) -> str:
    return (
        f"--resume: {name} was {old} when the run started and is {new} now; its results are of both"
    )


def read_environment(folder: Path) -> Environment | None:
    """Return the environment that a run started with, None where it cannot be read."""
    try:
        return read_record(folder / RUN_FILE, RunRecord).environment
    except RecordFileError:
        return None


def open_run(folder: Path, first: RunRecord) -> Resumed:
    """Take a run folder over: lock it, and judge what was left without a verdict.

    Args:
        folder: The run folder.
        first: Stands for a ``run.json`` that cannot be read.

    Raises:
        RunFolderError: if another process writes it, or it cannot be written.
    """
    lock = None
    try:
        lock = RunLock(folder)
        found = recover(folder)
    except RunLockedError as error:
        raise RunFolderError(str(error)) from error
    except OSError as error:
        if lock is not None:
            lock.release()
        raise RunFolderError(storage_problem(error) or f"{folder}: {error}") from error
    return Resumed(
        folder=RunFolder(path=folder),
        lock=lock,
        plan=found.plan,
        record=found.record or first,
        results=found.results,
    )
