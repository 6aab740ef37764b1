"""``dsa-harness report RUN``: rebuild a run's documents from its record files and print one."""

from __future__ import annotations

import sys
from pathlib import Path

import click


class ReportError(click.ClickException):
    """The run cannot be reported; one line, exit code 2."""

    exit_code = 2


@click.command(name="report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["console", "markdown"]),
    default="console",
    show_default=True,
    help="What to print after rebuilding.",
)
def report(run: Path, form: str) -> None:
    """Rebuild the documents of RUN (a run folder) and print a summary.

    The exit code says whether that worked; `dsa-harness status RUN` returns the run's own.
    """
    # Imported late, so that `dsa-harness --help` does not load the templates.
    from reports.console import print_plain, print_summary
    from reports.markdown import render_markdown
    from reports.render import read_summary, write_documents
    from reports.store import RunFolderError

    try:
        summary = read_summary(run)
    except RunFolderError as error:
        raise ReportError(str(error)) from error
    if form == "markdown":
        print_plain(render_markdown(summary), sys.stdout)
    else:
        print_summary(summary, sys.stdout)
    try:
        write_documents(summary, run)
    except OSError as error:
        # A run folder on a read-only share can still be read out.
        click.echo(f"report.md was not rebuilt: {error}", err=True)
