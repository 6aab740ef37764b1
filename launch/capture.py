"""``dsa-harness capture``: what a training job recorded, and a scenario made of it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.record.verdict import ExitCode
from launch.paths import PATH

if TYPE_CHECKING:
    from harness.scenario.spec import Scenario

_FOLDER = click.argument("folder", metavar="DIR", type=PATH)


class CaptureUseError(click.ClickException):
    """A capture that cannot be used as asked; one line, exit code 2."""

    exit_code = int(ExitCode.USAGE)


@click.group(short_help="Read what a training job recorded, and make a scenario of it.")
def capture() -> None:
    """Read what a training job recorded (docs/capture.md), and make a scenario of it."""


@capture.command(name="path", short_help="Print the folder to put on the job's PYTHONPATH.")
def show_path() -> None:
    """Print the folder to put on the job's PYTHONPATH.

    It needs the standard library and torch alone, and works as a copy elsewhere.
    """
    import harness.repro.job

    click.echo(Path(harness.repro.job.__file__).parent)


@capture.command(short_help="Show what a capture holds.")
@_FOLDER
@click.option("--rank", type=click.IntRange(min=0), help="Global rank to list.")
def show(folder: Path, rank: int | None) -> None:
    """Show ranks, how each ended, and the microbatches of the rank at fault (or of --rank)."""
    from harness.repro.capture_lines import read_capture
    from harness.repro.capture_records import CaptureError
    from harness.repro.capture_shown import lines_of

    try:
        lines = list(lines_of(read_capture(folder), rank))
    except CaptureError as error:
        raise CaptureUseError(_one_line(error)) from error
    for line in lines:
        click.echo(line)


@capture.command(name="to-scenario", short_help="Make a scenario of a capture.")
@_FOLDER
@click.option("--rank", type=click.IntRange(min=0), help="Global rank whose history counts.")
@click.option("--until", type=click.IntRange(min=0), help="Last microbatch of the history.")
@click.option("--history", type=click.IntRange(min=1), help="Microbatches at most.")
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    help="Rank processes at most; larger groups are scaled down to them.",
)
@click.option(
    "--level",
    type=click.Choice(["scorer", "attention", "model"]),
    help="Default: attention, or scorer where the job's group is larger than 8 ranks.",
)
@click.option("--id", "name", help="Id of the scenario.")
@click.option(
    "--signature",
    type=PATH,
    metavar="FILE",
    help="Write the signature of the fault there, for dsa-harness minimise --signature.",
)
@click.option(
    "--out",
    type=PATH,
    metavar="FILE",
    help="Scenario file to write (default: standard output).",
)
def to_scenario(
    folder: Path,
    rank: int | None,
    until: int | None,
    history: int | None,
    ranks: int | None,
    level: str | None,
    name: str | None,
    signature: Path | None,
    out: Path | None,
) -> None:
    """Make a scenario of the layouts that led to the fault.

    The rank is the one whose exception is the earliest that is no echo of a collective, or that
    stopped first; the head of the file says which and what a smaller number of ranks leaves out.
    """
    from harness.record.text import visible
    from harness.repro.capture_ends import signature_from
    from harness.repro.capture_lines import read_capture
    from harness.repro.capture_records import CaptureError
    from harness.repro.capture_scenario import Wishes, scenario_from

    try:
        recorded = read_capture(folder)
        wishes = Wishes(
            rank=rank,
            until=until,
            history=history,
            ranks=ranks,
            level=level,  # type: ignore[arg-type]
            name=name,
        )
        made = scenario_from(recorded, wishes)
        sign = None if signature is None else signature_from(recorded, made.end)
    except CaptureError as error:
        raise CaptureUseError(_one_line(error)) from error
    text = _text(made.scenario, made.notes)
    for doubt in made.doubts:
        click.echo(visible(doubt), err=True)
    if signature is not None:
        from harness.record.codec import dumps

        _write(signature, dumps(sign, indent=1) + "\n", "--signature")
        click.echo(f"{signature}: {sign}", err=True)
    if out is None:
        click.echo(text, nl=False)
    else:
        _write(out, text, "--out")
        click.echo(f"{out}: {made.scenario.id}, {made.end.how}", err=True)


def _text(scenario: Scenario, notes: tuple[str, ...]) -> str:
    """Write the scenario and read it back, so that no file is handed out that cannot be used."""
    from harness.record.text import visible
    from harness.scenario.loader import load
    from harness.scenario.writing import scenario_to_yaml

    text = scenario_to_yaml(scenario, comments=["Made of a capture.", *map(visible, notes)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scenario.yaml")
        path.write_text(text, encoding="utf-8")
        result = load([path])
        if not result.ok:
            first = str(result.problems[0]).removeprefix(f"{path}:")
            raise CaptureUseError(
                f"the capture makes no valid scenario: {first}; try another --level, or --rank, "
                "--until and --history"
            )
    return text


def _write(path: Path, text: str, option: str) -> None:
    from harness.record.files import write_text

    try:
        write_text(path, text)
    except OSError as error:
        raise CaptureUseError(
            f"{option} {path}: {error.strerror or error}; choose another"
        ) from error


def _one_line(error: Exception) -> str:
    from harness.record.text import visible

    return visible(str(error))
