"""``dsa-harness diff``: two runs beside each other, or two targets run one after the other."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from harness.record.verdict import ExitCode, bisect_code


class DiffError(click.ClickException):
    """The comparison cannot be made; one line, exit code 2."""

    exit_code = int(ExitCode.USAGE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One of the two things compared.

    Attributes:
        label: What to call it.
        words: What is added to ``dsa-harness run``.
    """

    label: str
    words: tuple[str, ...]


INSTALLED = "installed"
"""Stands for the installed Megatron where a checkout is named otherwise."""


def targets(
    megatron: tuple[str, ...], modelled: tuple[str, ...], overlay: tuple[str, ...]
) -> tuple[Target, ...]:
    """Return the two targets that the flags name, none where they name none.

    Raises:
        DiffError: for one or three of a kind, or two kinds at once.
    """
    kinds = [name for name, given in _kinds(megatron, modelled, overlay) if given]
    if len(kinds) > 1:
        raise DiffError(
            f"expected targets of one kind, found {' and '.join(kinds)}; compare one at a time"
        )
    for name, given in _kinds(megatron, modelled, ()):
        if given and len(given) != 2:
            raise DiffError(f"{name}: expected it twice, found it {len(given)} times")
    if megatron:
        return tuple(
            Target(label=path, words=() if path == INSTALLED else ("--megatron", path))
            for path in megatron
        )
    if modelled:
        return tuple(Target(label=name, words=("--modelled", name)) for name in modelled)
    if overlay:
        words = tuple(word for name in overlay for word in ("--overlay", name))
        label = "with " + " and ".join(overlay)
        return (Target(label="without overlays", words=()), Target(label=label, words=words))
    return ()


def _kinds(
    megatron: tuple[str, ...], modelled: tuple[str, ...], overlay: tuple[str, ...]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (("--megatron", megatron), ("--modelled", modelled), ("--overlay", overlay))


@click.command(name="diff")
@click.argument("paths", metavar="RUN_A RUN_B | SCENARIO...", nargs=-1, required=True)
@click.option(
    "--megatron", multiple=True, metavar="PATH", help="A build; `installed` for that one."
)
@click.option("--modelled", multiple=True, metavar="RELEASE[@ARCH]", help="A modelled release.")
@click.option("--overlay", multiple=True, metavar="NAME", help="Without and with this overlay.")
@click.option("--ranks", type=click.IntRange(min=1), default=1, show_default=True, metavar="N")
@click.option("--out", default="runs", show_default=True, metavar="DIR", help="Folder of runs.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["console", "markdown"]),
    default="console",
    show_default=True,
    help="What to print.",
)
@click.option("--bisect", is_flag=True, help="Exit 0 when alike, 1 when not, 125 when unknown.")
def diff(
    paths: tuple[str, ...],
    megatron: tuple[str, ...],
    modelled: tuple[str, ...],
    overlay: tuple[str, ...],
    ranks: int,
    out: str,
    form: str,
    bisect: bool,
) -> int:
    """Show what differs between two runs: what moved around them, and what they did.

    Give two run folders; or scenarios and two targets (--megatron twice, --modelled twice, or
    --overlay), which are then run one after the other. Exit code 0 when both behaved alike, 1 when
    they did not, 5 when they share no scenario.
    """
    from reports.comparison.compare import compare
    from reports.comparison.text import plain_lines, render_comparison
    from reports.console import print_plain
    from reports.store import RunFolderError, load_run

    chosen = targets(megatron, modelled, overlay)
    names = None
    if chosen:
        folders = [_run(target, paths, ranks, Path(out)) for target in chosen]
        names = (chosen[0].label, chosen[1].label)
    elif len(paths) == 2:
        folders = [Path(path) for path in paths]
    else:
        raise DiffError(
            f"expected two run folders, found {len(paths)} paths; for scenarios name two targets "
            "with --megatron, --modelled or --overlay"
        )
    try:
        before, after = (load_run(folder) for folder in folders)
    except RunFolderError as error:
        raise DiffError(str(error)) from error
    for warning in (*before.warnings, *after.warnings):
        click.echo(warning, err=True)
    comparison = compare(before, after, names=names)
    if form == "markdown":
        print_plain(render_comparison(comparison), sys.stdout)
    else:
        print_plain("\n".join(plain_lines(comparison)) + "\n", sys.stdout)
    code = comparison.exit_code
    return int(bisect_code(code) if bisect else code)


def _run(target: Target, paths: tuple[str, ...], ranks: int, out: Path) -> Path:
    """Run the scenarios on a target in a process of its own and return the run's folder."""
    from launch.other_run import run_elsewhere

    words = ["--ranks", str(ranks), "--out", str(out), *target.words, *paths]
    # In a process of its own: the two targets may be two versions of one package.
    folder, code = run_elsewhere(words)
    if folder is None:
        raise DiffError(f"{target.label}: nothing ran (exit code {code}), see above")
    return folder
