"""``dsa-harness baseline RUN``: show what would change, and accept it only when told to."""

from __future__ import annotations

from pathlib import Path

import click

from harness.record.verdict import ExitCode
from launch.paths import PATH


class BaselineCommandError(click.ClickException):
    """The baseline cannot be shown or changed; one line, exit code 2."""

    exit_code = int(ExitCode.USAGE)


@click.command(name="baseline")
@click.argument("run", type=PATH)
@click.option("--store", type=PATH, required=True, metavar="DIR",
              help="Folder of the history.")  # fmt: skip
@click.option("--accept", is_flag=True, help="Make RUN the baseline of its key.")
def baseline(run: Path, store: Path, accept: bool) -> int:
    """Show how RUN (a run folder) differs from the accepted baseline of its key.

    Nothing is changed without --accept. Exit code 0 when nothing differs or the difference was
    accepted, 1 when something differs.
    """
    from reports.history.baselines import (
        BaselineError,
        baseline_of,
        differences,
        read_baseline,
    )
    from reports.history.baselines import accept as write_baseline
    from reports.history.night import night_of
    from reports.store import RunFolderError, load_run

    try:
        new = baseline_of(night_of(load_run(run)))
        old = read_baseline(store, new.key)
    except (RunFolderError, BaselineError, ValueError) as error:
        raise BaselineCommandError(str(error)) from error
    changes = list(differences(old, new))
    click.echo(f"key: {new.key.text}")
    click.echo("no baseline yet" if old is None else f"baseline: {old.night} ({old.started_at})")
    for change in changes:
        click.echo(f"  {change.text}")
    if not changes:
        click.echo("nothing differs")
        return int(ExitCode.OK)
    if not accept:
        click.echo(f"{len(changes)} numbers differ; give --accept to make this the baseline")
        return int(ExitCode.CHECK_FAILED)
    try:
        path = write_baseline(store, new)
    except OSError as error:
        raise BaselineCommandError(f"--store {store}: {error.strerror}") from error
    click.echo(f"accepted: {path}")
    return int(ExitCode.OK)
