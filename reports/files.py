"""Files of a run folder that documents point at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from harness.record.files import RESULTS_FOLDER, safe_name
from harness.record.result import Attempt, ScenarioResult
from harness.record.verdict import Verdict

_RANK_FILES = ("stacks", "pyspy.json", "err", "out", "jsonl")
"""Endings of a rank's files, those to read first in front."""


def result_file(result: ScenarioResult) -> str:
    """Return the result's record file inside the run folder."""
    return f"{RESULTS_FOLDER}/{safe_name(result.id)}.json"


def attempt_folder(result: ScenarioResult, attempt: Attempt) -> str:
    """Return the folder of an attempt's journals, output and stacks inside the run folder."""
    return f"ranks/{safe_name(result.id)}/{attempt.number}"


def files_to_read(result: ScenarioResult, run_dir: Path | None) -> tuple[str, ...]:
    """Return what to read of a result, inside the run folder, most telling first.

    Named are files of the first faulty rank (of rank 0 where none is), as far as they exist and
    hold anything, and the record. Without a folder to look into, the record alone is named.
    """
    return (*_rank_files(result, run_dir), result_file(result))


def _rank_files(result: ScenarioResult, run_dir: Path | None) -> Iterator[str]:
    if run_dir is None or result.verdict is Verdict.NOT_RUN:
        return
    fault = result.last.fault
    rank = 0 if fault is None or fault.global_rank is None else fault.global_rank
    for ending in _RANK_FILES:
        name = f"{attempt_folder(result, result.last)}/rank{rank}.{ending}"
        try:
            if (run_dir / name).stat().st_size:
                yield name
        except OSError:
            continue
