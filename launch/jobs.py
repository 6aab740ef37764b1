"""``dsa-harness jobs``, ``wait``, ``cancel``, ``collect``: what became of a submission."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.record.verdict import ExitCode
from launch.paths import PATH

if TYPE_CHECKING:
    from launch.slurm.client import Slurm
    from launch.slurm.progress import PartProgress
    from launch.slurm.submission import Submission


class JobsError(click.ClickException):
    """The submission cannot be looked at; one line, exit code 2."""

    exit_code = int(ExitCode.USAGE)


_folder = click.argument("submission", type=PATH, metavar="SUBMISSION")


def _read(folder: Path) -> Submission:
    from launch.slurm.submission import SubmissionError, read_submission

    try:
        return read_submission(folder)
    except SubmissionError as error:
        raise JobsError(str(error)) from error


def _look(folder: Path, submission: Submission, slurm: Slurm) -> tuple[PartProgress, ...]:
    from launch.slurm.client import SlurmError
    from launch.slurm.progress import progress

    try:
        states = slurm.states([job.id for job in submission.jobs])
    except SlurmError as error:
        raise JobsError(str(error)) from error
    return progress(folder, submission, states)


@click.command(name="jobs")
@_folder
def jobs(submission: Path) -> int:
    """Show how the parts of SUBMISSION stand."""
    from launch.slurm.client import Slurm

    for part in _look(submission, _read(submission), Slurm()):
        click.echo(part.text)
    return int(ExitCode.OK)


@click.command(name="wait")
@_folder
@click.option("--poll", type=click.FloatRange(min=0.2), default=15.0, show_default=True,
              metavar="S", help="Seconds between two looks.")  # fmt: skip
@click.option("--timeout", type=click.FloatRange(min=0), metavar="S",
              help="Give up after that many seconds (exit code 124).")  # fmt: skip
def wait(submission: Path, poll: float, timeout: float | None) -> int:
    """Wait until all parts of SUBMISSION are over, then collect them; the exit code is the run's.

    One query of Slurm a look. A line is printed for each part whose state changed.
    """
    from launch.slurm.client import Slurm

    record, slurm = _read(submission), Slurm()
    end = None if timeout is None else time.monotonic() + timeout
    seen: dict[int, str] = {}
    while True:
        parts = _look(submission, record, slurm)
        for part in parts:
            if seen.get(part.number) != part.state:
                click.echo(part.text)
            seen[part.number] = part.state
        if all(part.over for part in parts):
            return _collect(submission, record, parts)
        if end is not None and time.monotonic() >= end:
            click.echo(f"gave up after {timeout:.0f} s", err=True)
            return 124
        time.sleep(poll)


@click.command(name="cancel")
@_folder
def cancel(submission: Path) -> int:
    """Cancel the jobs of SUBMISSION; what was measured stays."""
    from launch.slurm.client import Slurm, SlurmError

    record, slurm = _read(submission), Slurm()
    parts = _look(submission, record, slurm)
    ids = dict.fromkeys(part.slurm.id for part in parts if part.slurm and not part.over)
    try:
        slurm.cancel(ids)
    except SlurmError as error:
        raise JobsError(str(error)) from error
    click.echo(f"cancelled: {', '.join(ids) or 'nothing, all parts were over'}")
    return int(ExitCode.OK)


@click.command(name="collect")
@_folder
def collect(submission: Path) -> int:
    """Make one run, with one report, of what the parts of SUBMISSION have written so far.

    The exit code is that of the merged run; 3 while parts are running.
    """
    from launch.slurm.client import Slurm

    record = _read(submission)
    return _collect(submission, record, _look(submission, record, Slurm()))


def _collect(folder: Path, submission: Submission, parts: tuple[PartProgress, ...]) -> int:
    from launch.slurm.collect import collect as merge
    from launch.slurm.submission import SubmissionError
    from reports.console import print_summary
    from reports.render import read_summary, write_documents

    unfinished = [part for part in parts if part.over and part.state != "done"]
    for part in unfinished:
        click.echo(part.text, err=True)
    try:
        merged = merge(folder, submission, parts)
    except SubmissionError as error:
        raise JobsError(str(error)) from error
    summary = read_summary(merged)
    write_documents(summary, merged)
    print_summary(summary)
    if unfinished:
        click.echo(
            f"{len(unfinished)} part(s) are unfinished; `dsa-harness submit --again {folder} "
            "--cluster FILE` submits them again",
            err=True,
        )
    return int(ExitCode.HARNESS_ERROR) if summary.exit_code is None else summary.exit_code
