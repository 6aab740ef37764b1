"""``dsa-harness catalogue``: known faults, and the scenarios that state them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.record.verdict import ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.scenario.catalogue import Catalogue, Entry, SkimmedFile

_STATES = {
    "run": "runs",
    "kind": "by kind",
    "needs_gpu": "needs a GPU",
    "not_applicable": "n/a",
}


class CatalogueUnreadable(click.ClickException):
    """The catalogue cannot be used; one line, exit code 2."""

    exit_code = ExitCode.USAGE


@click.command(short_help="Show known faults and the scenarios that state them.")
@click.option(
    "--search",
    "words",
    metavar="TEXT",
    multiple=True,
    help="A link, a number (6206, cudnn-frontend#316) or words; repeat to ask for all.",
)
@click.option("--kind", metavar="KIND", help="Entries of one kind of fault.")
@click.option("--needs-gpu", is_flag=True, help="Entries that a GPU has something to add to.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.pass_context
def catalogue(
    ctx: click.Context, words: tuple[str, ...], kind: str | None, needs_gpu: bool, as_json: bool
) -> None:
    """Show what is known to go wrong, where it was reported, and which scenarios state it.

    Exit code 5 when nothing is found.
    """
    from harness.scenario.catalogue import CatalogueError, citing, read_catalogue, search, skim

    try:
        known = read_catalogue()
    except CatalogueError as error:
        raise CatalogueUnreadable(str(error)) from error
    if kind is not None and kind not in known.kinds:
        raise click.UsageError(f"--kind {kind}: expected one of {', '.join(known.kinds)}")
    asked = [part for word in words for part in word.split()]
    found = [
        entry
        for entry in search(known, asked)
        if (kind is None or kind in entry.kinds) and (not needs_gpu or entry.asks_for_a_gpu)
    ]
    files = {file.id: file for file in skim()}
    others = [] if kind or needs_gpu else _others(known, found, citing(files.values(), asked))
    if as_json:
        _show_json(known, found, files, others)
    else:
        _show(known, found, files, in_full=bool(asked) or kind is not None)
        _show_others(others, any_found=bool(found))
    if not found and not others:
        click.echo(f"no entry found; {_advice(asked, kind, needs_gpu)}", err=True)
        ctx.exit(ExitCode.NOTHING_RAN)


def _advice(asked: list[str], kind: str | None, needs_gpu: bool) -> str:
    if asked:
        return "try fewer words, or a number alone such as 316"
    limits = [*(["--kind"] if kind else []), *(["--needs-gpu"] if needs_gpu else [])]
    return f"leave out {' or '.join(limits)}"


def _others(
    known: Catalogue, found: Iterable[Entry], citing: Iterable[SkimmedFile]
) -> list[SkimmedFile]:
    """Scenario files that cite what was asked for, and that no entry found leads to."""
    covered = {scenario for entry in found for scenario in known.covering(entry)}
    return [file for file in citing if file.id not in covered]


def _show(
    known: Catalogue, entries: Iterable[Entry], files: dict[str, SkimmedFile], *, in_full: bool
) -> None:
    entries = list(entries)
    if in_full:
        for entry in entries:
            _show_entry(known, entry, files)
        return
    width = max((len(entry.name) for entry in entries), default=0)
    for name, kind in known.kinds.items():
        own = [entry for entry in entries if name in entry.kinds]
        if not own:
            continue
        click.echo(f"{name}: {kind.title}")
        click.echo(f"  sign: {kind.sign}")
        for entry in own:
            gpu = "gpu" if entry.asks_for_a_gpu else ""
            click.echo(
                f"  {entry.name:<{width}}  {_STATES[entry.state]:<11}  {gpu:<3}  "
                f"{len(known.covering(entry)):>2} scenarios  {','.join(entry.evidence)}"
            )
    click.echo(_summary(entries))


def _summary(entries: list[Entry]) -> str:
    states = [f"{sum(e.state == s for e in entries)} {text}" for s, text in _STATES.items()]
    gpu = sum(entry.asks_for_a_gpu for entry in entries)
    return f"{len(entries)} entries: {', '.join(states)}; a GPU has something to add to {gpu}"


def _show_entry(known: Catalogue, entry: Entry, files: dict[str, SkimmedFile]) -> None:
    click.echo(f"{entry.name}  {_STATES[entry.state]}  {', '.join(entry.kinds)}")
    click.echo(f"  {entry.what}")
    for link in entry.links:
        click.echo(f"  {link}")
    click.echo(f"  evidence: {', '.join(entry.evidence)}")
    if entry.reason:
        click.echo(f"  {entry.reason}")
    if entry.gpu:
        click.echo(f"  a GPU adds: {entry.gpu}")
    for scenario in known.covering(entry):
        click.echo(f"  {_shown(files, scenario)}")
    click.echo()


def _show_others(others: list[SkimmedFile], *, any_found: bool) -> None:
    if not others:
        return
    click.echo("also cited by" if any_found else "no entry; cited by")
    for file in others:
        click.echo(f"  {_path(file.file)}")


def _shown(files: dict[str, SkimmedFile], scenario: str) -> str:
    found = files.get(scenario)
    return scenario if found is None else _path(found.file)


def _path(file: Path) -> str:
    """Relative to where the reader stands, to be given to ``dsa-harness run`` as it is."""
    return os.path.relpath(file)


def _show_json(
    known: Catalogue,
    entries: Iterable[Entry],
    files: dict[str, SkimmedFile],
    others: list[SkimmedFile],
) -> None:
    from launch.scenario_options import show_json

    rows = []
    for entry in entries:
        covering = known.covering(entry)
        rows.append(
            {
                "name": entry.name,
                "state": entry.state,
                "kinds": entry.kinds,
                "what": entry.what,
                "evidence": entry.evidence,
                "links": entry.links,
                "needs_gpu": entry.asks_for_a_gpu,
                "gpu": entry.gpu or entry.reason,
                "scenarios": covering,
                "files": [_shown(files, scenario) for scenario in covering],
            }
        )
    cited_by = [_path(file.file) for file in others]
    show_json({"schema_version": 1, "entries": rows, "cited_by": cited_by})
