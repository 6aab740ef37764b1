"""A run folder read back: the run record, the results, and what could not be read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.record.files import (
    RESULTS_FOLDER,
    RUN_FILE,
    RecordFileError,
    read_record,
    safe_name,
)
from harness.record.result import RunRecord, ScenarioResult


class RunFolderError(ValueError):
    """A path holds no run at all; the message says what was looked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRun:
    """What a run folder holds.

    Attributes:
        record: The run record, None when ``run.json`` is missing or cannot be read.
        results: Results in the order in which the run lists its scenarios, others behind them.
        missing: Ids of scenarios that the run lists and that have no readable result.
        warnings: One sentence for each file that is missing, cut or not what it should be.
    """

    folder: Path
    record: RunRecord | None
    results: tuple[ScenarioResult, ...]
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def load_run(run_dir: Path) -> StoredRun:
    """Read a run folder, finished or not.

    Raises:
        RunFolderError: if the folder does not exist or holds neither ``run.json`` nor results.
    """
    if not run_dir.is_dir():
        raise RunFolderError(f"{run_dir}: expected a run folder, found {_what(run_dir)}")
    paths = sorted(
        path for path in (run_dir / RESULTS_FOLDER).glob("*.json") if not path.name.startswith(".")
    )
    if not paths and not (run_dir / RUN_FILE).exists():
        raise RunFolderError(
            f"{run_dir}: expected {RUN_FILE} or {RESULTS_FOLDER}/*.json, found neither; "
            "give the folder of one run, such as runs/<time>-<name>"
        )
    warnings: list[str] = []
    record = _read(run_dir / RUN_FILE, RunRecord, run_dir, warnings)
    by_id = _read_results(paths, run_dir, warnings)
    listed = () if record is None else record.scenario_ids
    missing = tuple(name for name in listed if name not in by_id)
    if listed:
        warnings += [
            f"{name}: has a result, but the run does not list it"
            for name in by_id
            if name not in listed
        ]
    order = {name: place for place, name in enumerate(listed)}
    results = sorted(by_id.values(), key=lambda result: order.get(result.id, len(order)))
    return StoredRun(
        folder=run_dir,
        record=record,
        results=tuple(results),
        missing=missing,
        warnings=tuple(warnings),
    )


def _what(path: Path) -> str:
    return "a file" if path.exists() else "nothing of that name"


def _read[T](path: Path, cls: type[T], run_dir: Path, warnings: list[str]) -> T | None:
    try:
        return read_record(path, cls)
    except RecordFileError as error:
        warnings.append(str(error).replace(f"{run_dir}/", "", 1))
        return None


def _read_results(
    paths: list[Path], run_dir: Path, warnings: list[str]
) -> dict[str, ScenarioResult]:
    by_id: dict[str, ScenarioResult] = {}
    for path in paths:
        result = _read(path, ScenarioResult, run_dir, warnings)
        if result is None:
            continue
        # A copied or renamed file would be counted twice: the file of the right name wins.
        rightly_named = path.stem == safe_name(result.id)
        if not rightly_named:
            warnings.append(
                f"{path.relative_to(run_dir)}: holds {result.id}, whose file is "
                f"{safe_name(result.id)}.json"
            )
        if rightly_named or result.id not in by_id:
            by_id[result.id] = result
    return by_id
