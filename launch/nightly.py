"""``dsa-harness nightly``: run a suite, add the night to a store, and tell what it shows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.record.verdict import ExitCode
from launch.durations import Duration
from launch.paths import PATH

if TYPE_CHECKING:
    from reports.history.quarantine import Quarantined
    from reports.history.telling import Told


class NightlyError(click.ClickException):
    """The night cannot be run or told; one line, exit code 2."""

    exit_code = int(ExitCode.USAGE)


@click.command(name="nightly")
@click.option("--suite", type=PATH, metavar="PATH", help="Suite to run.")
@click.option("--run", "run_dir", type=PATH, metavar="RUN",
              help="Tell a run that is there instead of running a suite.")  # fmt: skip
@click.option("--store", type=PATH, required=True, metavar="DIR",
              help="Folder of the history.")  # fmt: skip
@click.option("--ranks", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--out", default="runs", show_default=True, metavar="DIR", help="Folder of runs.")
@click.option("--budget", type=Duration(), metavar="TIME", help="Stop starting scenarios then.")
@click.option("--gpu-hours", type=click.FloatRange(min=0, min_open=True), metavar="H",
              help="The same in GPU hours: divided by the ranks.")  # fmt: skip
@click.option("--quarantine", type=PATH, metavar="FILE",
              help="Scenarios that are excused until a date.")  # fmt: skip
@click.option("--submit", "cluster_file", type=PATH, metavar="CLUSTER",
              help="Run the suite as Slurm jobs; a last job tells the night.")  # fmt: skip
@click.option("--fail-on-regression", is_flag=True, help="Exit 6 when the history shows one.")
def nightly(
    suite: Path | None,
    run_dir: Path | None,
    store: Path,
    ranks: int,
    out: str,
    budget: float | None,
    gpu_hours: float | None,
    quarantine: Path | None,
    cluster_file: Path | None,
    fail_on_regression: bool,
) -> int:
    """Run a suite in the order of its list, add the night to the store, and tell what it shows.

    Pages are written to DIR/pages. The exit code is that of a run, quarantined scenarios excused.
    """
    if (suite is None) == (run_dir is None):
        raise NightlyError("expected one of --suite and --run")
    entries = _quarantine(quarantine)
    if cluster_file is not None:
        if suite is None:
            raise NightlyError("--submit: goes with --suite, found --run")
        words = ["--store", str(store.resolve())]
        words += [] if quarantine is None else ["--quarantine", str(quarantine.resolve())]
        words += ["--fail-on-regression"] if fail_on_regression else []
        return _submit(suite, cluster_file, out, words)
    if suite is not None:
        seconds = budget if gpu_hours is None else gpu_hours * 3600.0 / ranks
        run_dir = _run(suite, ranks, out, seconds)
    assert run_dir is not None, "one of the two was given"
    told, code = _tell(run_dir, store, entries, fail_on_regression)
    from reports.history.story_text import plain_lines

    for line in _beyond_baseline(store, told):
        click.echo(line)
        code = ExitCode.REGRESSION if fail_on_regression and code is ExitCode.OK else code

    for warning in told.warnings:
        click.echo(warning, err=True)
    click.echo("\n".join(plain_lines(told.story)))
    click.echo(f"exit code {int(code)}: {code.meaning}")
    return int(code)


def _quarantine(path: Path | None) -> tuple[Quarantined, ...]:
    from reports.history.quarantine import QuarantineError, read_quarantine

    if path is None:
        return ()
    try:
        return read_quarantine(path)
    except QuarantineError as error:
        raise NightlyError(str(error)) from error


def _run(suite: Path, ranks: int, out: str, seconds: float | None) -> Path:
    """Run the suite in a process of its own and return the run's folder."""
    from launch.other_run import run_elsewhere

    words = ["--ranks", str(ranks), "--out", out, "--name", suite.stem, str(suite)]
    words += [] if seconds is None else ["--budget", f"{max(1, round(seconds))}"]
    folder, code = run_elsewhere(words)
    if folder is None:
        raise NightlyError(f"{suite}: nothing ran (exit code {code}), see above")
    return folder


def _tell(
    run_dir: Path, store: Path, entries: tuple[Quarantined, ...], fail_on_regression: bool
) -> tuple[Told, ExitCode]:
    """Add the night to the store and tell it."""
    from reports.history.night import night_of
    from reports.history.pages import write_pages
    from reports.history.store import StoreError, append
    from reports.history.story import exit_code
    from reports.history.telling import tell_night
    from reports.store import RunFolderError, load_run

    try:
        stored = load_run(run_dir)
        night = night_of(stored)
        append(store, night)
        told = tell_night(store, night, quarantine=entries)
        pages = write_pages(store, told)
    except (RunFolderError, StoreError, ValueError) as error:
        raise NightlyError(str(error)) from error
    click.echo(f"page {pages[0]}")
    return told, exit_code(told.story, fail_on_regression=fail_on_regression)


def _beyond_baseline(store: Path, told: Told) -> list[str]:
    """Return a line for each number that the accepted baseline of tonight's key does not allow."""
    from reports.history.baselines import BaselineError, beyond, read_baseline

    night = told.story.night
    try:
        baseline = read_baseline(store, night.key)
    except BaselineError as error:
        raise NightlyError(str(error)) from error
    if baseline is None:
        return []
    return [f"beyond the accepted baseline: {item.text}" for item in beyond(baseline, night)]


def _submit(suite: Path, cluster_file: Path, out: str, words: list[str]) -> int:
    """Submit the suite's jobs, and one behind them that collects and tells."""
    from launch.slurm.client import Slurm, SlurmError
    from launch.slurm.cluster import ClusterError, read_cluster
    from launch.slurm.night import submit_night
    from launch.slurm.submission import SubmissionError
    from launch.submit import PROJECT_ROOT, submit_paths

    try:
        cluster = read_cluster(cluster_file)
        folder = submit_paths((str(suite),), cluster, Path(out))
        project = cluster.project or str(PROJECT_ROOT)
        number = submit_night(Slurm(), cluster, folder, project, words)
    except (ClusterError, SubmissionError, SlurmError) as error:
        raise NightlyError(str(error)) from error
    click.echo(f"job {number}: collects and tells the night when the others are over")
    click.echo(f"submission folder {folder}")
    return int(ExitCode.OK)
