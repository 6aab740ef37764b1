"""``dsa-harness intake``: what a customer sent, as a draft of a scenario and questions."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import click

from harness.record.verdict import ExitCode
from launch.paths import PATH

_DRAFTS = ("scenario.yaml", "scenario.partial.yaml")
"""A draft that can be run, and one that lacks lengths."""


class IntakeUseError(click.ClickException):
    """A file that cannot be taken in; one line, exit code 2."""

    exit_code = int(ExitCode.USAGE)


@click.command(short_help="Draft a scenario from logs, arguments and versions that were sent in.")
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE...")
@click.option(
    "--out",
    type=PATH,
    metavar="DIR",
    help="Folder for intake.md, intake.json and the draft (default: print the report alone).",
)
@click.option("--id", "name", default="intake/draft", show_default=True, help="Id of the scenario.")
@click.option("--format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def intake(files: tuple[Path, ...], out: Path | None, name: str, format: str) -> None:
    """Read tracebacks, logs, argument dumps, collect_env texts, YAML and commands.

    What they say becomes a draft with the place of every field; what they do not say is asked for
    and stays a default. Named are also the kinds of fault that the texts speak for, each with a
    scenario that tells it apart. Secrets are masked.
    """
    from harness.record.text import visible
    from harness.repro.intake.draft import scenario_text
    from harness.repro.intake.intake import take_in
    from harness.repro.intake.lines import IntakeError
    from harness.repro.intake.report import as_data, markdown

    try:
        found = take_in(files)
    except IntakeError as error:
        raise IntakeUseError(visible(str(error))) from error
    draft = scenario_text(found.draft, name)
    problems = _problems(draft) if found.draft.is_complete else ()
    text = markdown(found, problems)
    data = json.dumps(as_data(found, problems), indent=1) + "\n"
    click.echo(data if format == "json" else text, nl=False)
    if out is not None:
        file, other = _DRAFTS if found.draft.is_complete else _DRAFTS[::-1]
        _write(out, {"intake.md": text, "intake.json": data, file: draft})
        _remove_draft(out / other)


def _problems(text: str) -> tuple[str, ...]:
    from harness.scenario.loader import load

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scenario.yaml")
        path.write_text(text, encoding="utf-8")
        return tuple(str(one).removeprefix(f"{folder}/") for one in load([path]).problems)


def _write(folder: Path, texts: dict[str, str]) -> None:
    from harness.record.files import write_text

    for name, text in texts.items():
        try:
            write_text(folder / name, text)
        except OSError as error:
            raise IntakeUseError(f"--out {folder}: {error.strerror or error}") from error
    click.echo(f"{folder}: {', '.join(texts)}", err=True)


def _remove_draft(path: Path) -> None:
    """Remove the draft of an earlier intake, which no longer belongs to the report beside it."""
    from harness.repro.intake.draft import HEAD

    try:
        if not path.is_file():
            return
        with path.open("rb") as file:
            is_ours = file.read(len(HEAD) + 2) == f"# {HEAD}".encode()
        if is_ours:
            path.unlink()
            click.echo(f"{path}: draft of an earlier intake, removed", err=True)
    except OSError as error:
        raise IntakeUseError(f"{path}: cannot be removed: {error.strerror or error}") from error
