"""What commands share that evaluate scenarios over warm ranks: their options and their start."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.record.verdict import ExitCode
from launch.durations import Duration
from launch.paths import PATH, PATH_TEXT

if TYPE_CHECKING:
    from harness.runtime.options import Options
    from harness.runtime.warm import WarmRanks
    from harness.scenario.spec import Scenario


class WarmError(click.ClickException):
    """What was asked for cannot be done; one line a problem, exit code 2."""

    exit_code = int(ExitCode.USAGE)


class WarmStartError(click.ClickException):
    """Rank processes cannot be started; the message says why, exit code 3."""

    exit_code = int(ExitCode.HARNESS_ERROR)


_OPTIONS = (
    click.option(
        "--budget",
        type=Duration(),
        metavar="TIME",
        default="60s",
        show_default=True,
        help="Nothing further starts after it, such as 60s, 5m or 1h.",
    ),
    click.option(
        "--ranks",
        "num_ranks",
        type=click.IntRange(min=1),
        metavar="N",
        help="Rank processes (default: as many as the scenario needs).",
    ),
    click.option("-k", "keyword", metavar="EXPR", help="Of a file with several scenarios, these."),
    click.option("--out", type=PATH, metavar="DIR", help="Output folder."),
    click.option(
        "--megatron",
        type=PATH_TEXT,
        metavar="PATH",
        help="Megatron-LM checkout (default: installed).",
    ),
    click.option(
        "--inject",
        multiple=True,
        metavar="KIND@RANK:PHASE[@SCENARIO]",
        help="Plant a fault, as with run (repeatable); saved scenarios keep it.",
    ),
    click.option(
        "--modelled",
        metavar="RELEASE[@ARCH]",
        help="Model this release, as with run; saved scenarios keep it.",
    ),
    click.option(
        "--overlay",
        multiple=True,
        metavar="NAME",
        help="Switch this overlay on, as with run; saved scenarios keep it.",
    ),
)


def warm_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of a command that evaluates over warm ranks."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def chosen_scenarios(
    path: Path,
    *,
    keyword: str | None,
    inject: tuple[str, ...],
    modelled: str | None,
    overlay: tuple[str, ...],
) -> tuple[Scenario, ...]:
    """Load the scenarios of a path, with everything that the command line changes in them.

    Raises:
        WarmError: for a mistake in the files or on the command line.
    """
    from harness.runtime.inject import InjectionError, parse_injection
    from harness.runtime.overrides import OverrideError, parse_overrides
    from harness.scenario.loader import load
    from harness.scenario.select import ExpressionError, select

    loaded = load([path])
    if not loaded.ok:
        raise WarmError("\n".join(str(problem) for problem in loaded.problems))
    for problem in loaded.problems:  # warnings
        click.echo(str(problem), err=True)
    try:
        faults = [parse_injection(text) for text in inject]
        overrides = parse_overrides(modelled, overlay)
        found = select((item.scenario for item in loaded.scenarios), expression=keyword)
    except (InjectionError, OverrideError, ExpressionError) as error:
        raise WarmError(str(error)) from error
    if not found:
        raise WarmError(f"{path}: -k {keyword!r} matches none of {len(loaded.scenarios)} scenarios")
    planted = []
    for scenario in map(overrides.apply, found):
        mine = tuple(str(replace(f, scenario="")) for f in faults if f.scenario in scenario.id)
        planted.append(replace(scenario, inject=(*scenario.inject, *mine)))
    return tuple(planted)


def need_hypothesis(command: str) -> None:
    """Refuse a command where hypothesis, which draws its cases, is not installed.

    Raises:
        WarmError: saying what to install.
    """
    try:
        import hypothesis  # noqa: F401
    except ImportError as error:
        raise WarmError(
            f"{command} needs hypothesis; run pip install 'hypothesis>=6.150'"
        ) from error


def run_options(megatron: str | None) -> Options:
    """Return what a run's command line would say, with the checkout made sure of.

    Raises:
        WarmError: if there is no such checkout.
    """
    from harness.production.locate import BuildError, find_build
    from harness.runtime.options import Options

    try:
        find_build(megatron)
    except BuildError as error:
        raise WarmError(str(error)) from error
    return Options(megatron=megatron)


@contextlib.contextmanager
def started(ranks: WarmRanks) -> Iterator[WarmRanks]:
    """Start warm ranks, and end them behind the block.

    Raises:
        WarmError: if the output folder cannot be made.
        WarmStartError: if ranks cannot be started.
    """
    from harness.runtime.run_folder import RunFolderError
    from harness.runtime.spawner import SpawnerError

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(ranks)
        except RunFolderError as error:
            raise WarmError(str(error)) from error
        except (SpawnerError, OSError) as error:
            raise WarmStartError(str(error)) from error
        yield ranks


def rerun_command(num_ranks: int, megatron: str | None) -> str:
    """Return the command that runs a saved scenario, without its file."""
    words = ["dsa-harness", "run", "--ranks", str(num_ranks)]
    return shlex.join(words + (["--megatron", megatron] if megatron else []))


def on_gpu(scenarios: tuple[Scenario, ...]) -> bool:
    """Tell whether ranks of these scenarios may use GPUs."""
    from harness.runtime.devices import num_gpus

    return num_gpus() > 0 and any(s.kernels.source != "modelled" for s in scenarios)


def checked(out: Path) -> None:
    """Refuse an output folder that cannot be written.

    Raises:
        WarmError: naming what is in the way.
    """
    from harness.runtime.run_folder import RunFolderError, check_writable

    try:
        check_writable(out)
    except RunFolderError as error:
        raise WarmError(str(error)) from error
