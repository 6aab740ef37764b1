"""``dsa-harness report RUN``: rebuild a run's documents from its record files and print one."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from harness.record.text import visible
from launch.paths import PATH


class ReportError(click.ClickException):
    """The run cannot be reported; one line, exit code 2."""

    exit_code = 2


@click.command(name="report")
@click.argument("run", type=PATH)
@click.option(
    "--format",
    "form",
    type=click.Choice(["console", "markdown", "html", "junit", "json"]),
    default="console",
    show_default=True,
    help="What to print after rebuilding.",
)
@click.option(
    "--against",
    type=PATH,
    metavar="RUN",
    help="An earlier run; page and summary.json list what changed since.",
)
def report(run: Path, form: str, against: Path | None) -> None:
    """Rebuild the documents of RUN (a run folder) and print a summary.

    A run that was killed is brought up to date first: attempts that left journals and no result are
    judged from their files. The exit code says whether that worked; `dsa-harness status RUN`
    returns the run's own.
    """
    # Imported late, so that `dsa-harness --help` does not load the templates.
    from reports.console import print_plain, print_summary
    from reports.render import DOCUMENTS, FORMATS, read_summary, write_documents
    from reports.store import RunFolderError

    _bring_up_to_date(run)
    try:
        summary = read_summary(run, against)
    except RunFolderError as error:
        raise ReportError(str(error)) from error
    if form in FORMATS:
        print_plain(DOCUMENTS[FORMATS[form]](summary), sys.stdout)
    else:
        print_summary(summary, sys.stdout)
    try:
        write_documents(summary, run)
    except OSError as error:
        # A run folder on a read-only share can still be read out.
        click.echo(f"the documents were not rebuilt: {error}", err=True)


def _bring_up_to_date(run: Path) -> None:
    """Judge what a killed run left without a verdict; a run that goes on is left alone."""
    from harness.runtime.plan_file import PLAN_FILE, PlanError
    from harness.runtime.recovery import recover
    from harness.runtime.run_lock import RunLock, RunLockedError

    if not (run / PLAN_FILE).is_file():
        return
    try:
        lock = RunLock(run)
    except (RunLockedError, OSError):
        # Still running, or not ours to write: what is there can be shown all the same.
        return
    try:
        found = recover(run)
    except PlanError:
        return
    except OSError as error:
        click.echo(f"attempts without a result were not judged: {error}", err=True)
        return
    finally:
        lock.release()
    for scenario_id in found.found:
        click.echo(f"judged from its files: {visible(scenario_id)}", err=True)
