"""Runs under a profiler: one start of the workers, its reports moved into the run folder."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import click

from harness.record.files import RUN_FILE, read_record
from harness.record.result import RunRecord
from harness.record.verdict import ExitCode
from harness.runtime.commands import RUN_SCRIPT, run_words
from harness.runtime.options import Options
from harness.runtime.profiler import (
    FOLDER,
    NOTE,
    PROGRAM,
    Settings,
    find_profiler,
    parse_profile,
    rank_words,
)
from harness.runtime.run_folder import RunFolder
from launch.run_command import launch

_MISSING = (
    f"not run: --profile: missing {PROGRAM} (Nsight Systems) on the path or below CUDA_HOME; "
    "install it, or run without --profile"
)


def run_profiled(options: Options, num_ranks: int) -> ExitCode:
    """Run what was asked for under the profiler and return the run's exit code."""
    assert options.profile is not None, "the caller looked"
    ranks = parse_profile(options.profile)
    beyond = [rank for rank in ranks if rank >= num_ranks]
    if beyond:
        click.echo(
            f"--profile {options.profile}: expected ranks below {num_ranks}, found {beyond[0]}; "
            f"add --ranks {beyond[-1] + 1}, or name another rank",
            err=True,
        )
        return ExitCode.USAGE
    if find_profiler() is None:
        click.echo(_MISSING, err=True)
        return ExitCode.NOTHING_RAN
    with tempfile.TemporaryDirectory(prefix="dsa-harness-profile-") as scratch:
        settings = Settings(folder=str(Path(scratch, FOLDER)), ranks=ranks)
        told = Path(scratch, "folder")
        plain = replace(options, profile=None, isolation="none", jobs=1)
        words = [sys.executable, "-u", str(RUN_SCRIPT), *run_words(plain)]
        words += ["--folder-file", str(told)]
        code = launch(rank_words(settings, words), num_ranks)
        if told.exists():
            _keep(settings, Path(told.read_text()))
    return code


def _keep(settings: Settings, folder: Path) -> None:
    """Move the reports into the run folder, and write into its record what it is."""
    where = f"ranks {', '.join(map(str, settings.ranks))}" if settings.ranks else "all ranks"
    if Path(settings.folder).is_dir():
        shutil.move(settings.folder, folder / FOLDER)
    record = read_record(folder / RUN_FILE, RunRecord)
    note = NOTE.format(where=where)
    RunFolder(path=folder).write_run(replace(record, notes=(*record.notes, note)))
    click.echo(f"{note}\nprofiles: {folder / FOLDER}")
