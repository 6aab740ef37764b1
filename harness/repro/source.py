"""What is exported: a scenario of a file, or one of a run with what the run showed of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.record.codec import from_jsonable
from harness.record.environment import Environment
from harness.record.files import RESULTS_FOLDER, RUN_FILE, RecordFileError, read_record
from harness.record.result import RunRecord, ScenarioResult
from harness.scenario.spec import Scenario


class SourceError(ValueError):
    """The path holds no scenario, or several; the text says what to give."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """One scenario to export.

    Attributes:
        result: What a run showed of it, None for a scenario of a file.
        environment: What that run ran on.
        command: Command that reruns it from a checkout of the project.
    """

    scenario: Scenario
    result: ScenarioResult | None = None
    environment: Environment | None = None
    command: str = ""


def find_exported(path: Path, *, scenario_id: str | None = None) -> Exported:
    """Read a scenario file, a run folder, or one result of a run.

    Args:
        path: A YAML file (or folder of them), a run folder, or a file of its ``results``.
        scenario_id: Which one, where there are several.

    Raises:
        SourceError: for a path that holds none, or several without an id.
    """
    if path.suffix == ".json":
        return _of_result(path)
    if (path / RUN_FILE).exists() or (path / RESULTS_FOLDER).is_dir():
        files = sorted((path / RESULTS_FOLDER).glob("[!.]*.json"))
        if not files:
            raise SourceError(f"{path}: this run has no results to export")
        found = [_of_result(file) for file in files]
        return _chosen(found, scenario_id, path)
    return _chosen(_of_files(path), scenario_id, path)


def _of_files(path: Path) -> list[Exported]:
    from harness.scenario.loader import load

    loaded = load([path])
    if not loaded.ok:
        raise SourceError("\n".join(str(problem) for problem in loaded.problems))
    return [
        Exported(scenario=item.scenario, command=f"dsa-harness run {item.file}")
        for item in loaded.scenarios
    ]


def _of_result(path: Path) -> Exported:
    try:
        result = read_record(path, ScenarioResult)
        scenario = from_jsonable(Scenario, result.scenario)
    except (RecordFileError, ValueError) as error:
        text = str(error)
        raise SourceError(text if str(path) in text else f"{path}: {text}") from error
    try:
        run = read_record(path.parent.parent / RUN_FILE, RunRecord)
    except RecordFileError:
        run = None
    return Exported(
        scenario=scenario,
        result=result,
        environment=None if run is None else run.environment,
        command=result.rerun,
    )


def _chosen(found: Sequence[Exported], scenario_id: str | None, path: Path) -> Exported:
    ids = [item.scenario.id for item in found]
    if scenario_id is not None:
        for item in found:
            if item.scenario.id == scenario_id:
                return item
        raise SourceError(f"{path}: no scenario {scenario_id!r}; there are {_listed(ids)}")
    if len(found) != 1:
        several = f"{len(found)} scenarios, {_listed(ids)}; choose one with --id" if ids else "none"
        raise SourceError(f"{path}: expected one scenario, found {several}")
    return found[0]


def _listed(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - 4} more" if len(ids) > 4 else ""
    return ", ".join(ids[:4]) + more
