"""The runs of a submission's parts as one run, with one report."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.record.files import RESULTS_FOLDER, RUN_FILE, result_path, write_record
from harness.record.result import RunRecord, ScenarioResult
from harness.record.verdict import ExitCode, exit_code
from launch.slurm.progress import PartProgress
from launch.slurm.submission import Submission, SubmissionError
from reports.store import StoredRun, load_run

MERGED = "merged"
"""Folder of the merged run inside a submission's folder."""


def collect(folder: Path, submission: Submission, parts: Sequence[PartProgress]) -> Path:
    """Make one run of the parts' runs and return its folder; it can be made again at any time.

    Raises:
        SubmissionError: if no part has a run yet.
    """
    runs = [load_run(part.run) for part in parts if part.run is not None]
    records = [run.record for run in runs if run.record is not None]
    if not records:
        raise SubmissionError(f"{folder}: no part has a run yet; see `dsa-harness jobs {folder}`")
    temporary = folder / f".{MERGED}.{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    (temporary / RESULTS_FOLDER).mkdir(parents=True)
    results = [result for run in runs for result in run.results]
    for result in results:
        write_record(result_path(temporary, result.id), result)
    for run in runs:
        _link_ranks(run, temporary)
    write_record(temporary / RUN_FILE, _record(submission, records, results, parts))
    merged = folder / MERGED
    shutil.rmtree(merged, ignore_errors=True)
    temporary.rename(merged)
    return merged


def _link_ranks(run: StoredRun, merged: Path) -> None:
    """Bring journals and stacks along; as further names of the files where that is possible."""
    source = run.folder / "ranks"
    if source.is_dir():
        shutil.copytree(source, merged / "ranks", copy_function=_link, dirs_exist_ok=True)


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
    return target


def _record(
    submission: Submission,
    records: Sequence[RunRecord],
    results: Sequence[ScenarioResult],
    parts: Sequence[PartProgress],
) -> RunRecord:
    first = min(records, key=lambda record: record.started_at)
    asked = tuple(name for part in submission.parts for name in part.ids)
    over = all(part.over for part in parts)
    code = _code(records, results, complete=len(results) >= len(asked)) if over else None
    hosts = sorted({record.environment.host for record in records})
    notes = (
        f"merged from {len(records)} of {len(parts)} parts, led on {', '.join(hosts)}",
        *(part.text for part in parts),
        *(note for record in records for note in record.notes),
    )
    return replace(
        first,
        name=submission.name,
        finished_at=max((r.finished_at or "" for r in records), default="") or None,
        world_size=max(record.world_size for record in records),
        num_nodes=max(record.num_nodes for record in records),
        scenario_ids=asked,
        exit_code=None if code is None else int(code),
        exit_meaning="" if code is None else code.meaning,
        notes=notes,
    )


def _code(
    records: Sequence[RunRecord], results: Sequence[ScenarioResult], *, complete: bool
) -> ExitCode:
    """Return the code of the results; where some are missing or cut short, no success."""
    whole = [result for result in results if result.last.cut_short is None]
    judged = exit_code((result.verdict, result.outcome) for result in whole)
    complete = complete and len(whole) == len(results)
    if complete or judged not in (ExitCode.OK, ExitCode.NOTHING_RAN):
        return judged
    codes = {record.exit_code for record in records}
    stopped = [ExitCode(code) for code in (130, 143) if code in codes]
    return stopped[0] if stopped else ExitCode.FAULT
