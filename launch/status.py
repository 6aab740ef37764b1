"""``dsa-harness status RUN``: one line on a run, and its exit code, which torchrun swallows."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import click

from harness.record.files import RESULTS_FOLDER, RUN_FILE, RecordFileError, read_record
from harness.record.result import RunRecord, ScenarioResult
from harness.record.verdict import ExitCode, Outcome
from harness.runtime.run_lock import live_holder
from launch.paths import PATH
from reports.text import counted


@click.command(name="status")
@click.argument("run", type=PATH, metavar="RUN")
def status(run: Path) -> int:
    """Show how RUN (a run folder or its run.json) stands, and return its exit code.

    The code is that of the run: 0 all as expected or known, 1 a check failed, and so on; 3 also for
    a run that still runs or was killed, which the line tells apart, and 2 when there is no run to
    read.
    """
    folder = run.parent if run.name == RUN_FILE else run
    try:
        record = read_record(folder / RUN_FILE, RunRecord)
    except RecordFileError as error:
        click.echo(f"{error}; give a run folder, such as runs/<time>-<name>", err=True)
        return int(ExitCode.USAGE)
    click.echo(f"{folder}: {_counts(folder, record)}; {_end(folder, record)}")
    return int(ExitCode.HARNESS_ERROR) if record.exit_code is None else record.exit_code


def _end(folder: Path, record: RunRecord) -> str:
    if record.exit_code is None:
        holder = live_holder(folder)
        if holder is not None:
            return f"still running ({holder})"
        command = shlex.join(["dsa-harness", "run", "--resume", str(folder)])
        return f"cut short: it was killed before it wrote an exit code; finish it with {command}"
    return f"exit code {record.exit_code} ({record.exit_meaning})"


def _counts(folder: Path, record: RunRecord) -> str:
    counts: Counter[Outcome] = Counter()
    for path in (folder / RESULTS_FOLDER).glob("*.json"):
        try:
            counts[read_record(path, ScenarioResult).outcome] += 1
        except RecordFileError:
            continue
    parts = [f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome]]
    missing = len(record.scenario_ids) - sum(counts.values())
    parts += [f"{missing} without a result"] if missing > 0 else []
    return f"{counted(len(record.scenario_ids), 'scenario')}: {', '.join(parts) or 'none'}"
