"""``dsa-harness run``: the torchrun entry without torchrun, through torch elastic's launcher.

The launcher runs in this process. Unlike ``torchrun`` it then tells the leader's exit status apart
from others, and prints nothing of its own.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from harness.record.verdict import ExitCode, bisect_code
from harness.runtime.commands import RUN_SCRIPT, run_words
from harness.runtime.options import FLAGS, Flag, Options, UsageError, make_options
from harness.runtime.world import World

_PROG = "dsa-harness run"


def flag_options(
    *, without: frozenset[str] = frozenset()
) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return a decorator that gives a command the flags of a run.

    Args:
        without: Fields of ``Options`` whose flags the command does not take.
    """

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        for flag in reversed(FLAGS):
            if flag.key not in without:
                command = click.option(*flag.names, flag.key, **_settings(flag))(command)
        return command

    return decorate


def _settings(flag: Flag) -> dict[str, Any]:
    settings: dict[str, Any] = {"help": flag.help, "hidden": flag.hidden}
    if flag.metavar is None:
        return settings | {"is_flag": True}
    if flag.choices is not None:
        settings["type"] = click.Choice(flag.choices)
    else:
        settings["metavar"] = flag.metavar
    return settings | {"multiple": flag.many}


@click.command(name="run")
@click.option(
    "--ranks",
    "--nproc-per-node",
    "num_ranks",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Rank processes on this machine (default: 1; with --resume as many as the run had).",
)
@click.option(
    "--scenario", "more", multiple=True, metavar="PATH", help="The same as PATH, as torchrun's."
)
@click.option(
    "--bisect",
    is_flag=True,
    help="Exit as `git bisect run` reads it: 0 good, 1 bad, 125 for a revision to skip.",
)
@click.argument("paths", metavar="PATH...", nargs=-1)
@flag_options()
def run(
    num_ranks: int | None,
    paths: tuple[str, ...],
    more: tuple[str, ...],
    bisect: bool,
    **values: Any,
) -> int:
    """Run the scenarios of files and folders over N ranks, and return the run's exit code."""
    code = _run(num_ranks, (*paths, *more), values)
    return int(bisect_code(code) if bisect else code)


def _run(asked_ranks: int | None, paths: tuple[str, ...], values: dict[str, Any]) -> ExitCode:
    from harness.runtime.preflight import check
    from launch.lead import show_plan

    try:
        options = make_options(paths, values, _PROG)
        num_ranks = asked_ranks or _usual_ranks(options)
        world = World(world_size=num_ranks, local_world_size=num_ranks, launcher="torchrun")
        # The leader checks again; here a mistake costs no start of workers.
        preflight = check(world, options)
    except UsageError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        return error.exit_code
    if options.dry_run:
        for warning in preflight.warnings:
            click.echo(warning, err=True)
        show_plan(preflight, world, preflight.options)
        return ExitCode.OK
    if options.sanitizer is not None:
        from launch.sanitized import run_sanitized

        return run_sanitized(options, num_ranks)
    if options.profile is not None:
        from launch.profiled import run_profiled

        return run_profiled(options, num_ranks)
    told = ["--folder-file", options.folder_file] if options.folder_file is not None else []
    return launch(["-u", str(RUN_SCRIPT), *run_words(options), *told], num_ranks)


def _usual_ranks(options: Options) -> int:
    """Return 1, or as many ranks as the run had that shall go on."""
    if options.resume is None:
        return 1
    from harness.runtime.plan_file import PlanError, read_plan

    try:
        return read_plan(Path(options.resume)).world.world_size
    except PlanError as error:
        raise UsageError([f"--resume {error}"]) from error


def launch(command: list[str], num_ranks: int) -> ExitCode:
    """Start ``num_ranks`` workers as ``python COMMAND`` and return the leader's exit code."""
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _silence("torch.distributed.elastic")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(),
    )
    try:
        elastic_launch(config, sys.executable)(*command)
    except ChildFailedError as error:
        leader = error.failures.get(0)
        return _code(leader.exitcode if leader is not None else None)
    except SignalException as error:
        return _code(128 + int(error.sigval))
    return ExitCode.OK


def _code(status: int | None) -> ExitCode:
    """Read a leader's exit status; one that was killed, or never failed, explains nothing."""
    try:
        return ExitCode.HARNESS_ERROR if status is None else ExitCode(status)
    except ValueError:
        return ExitCode.HARNESS_ERROR


def _silence(package: str) -> None:
    """Keep the launcher's own log quiet: the leader says how the run ended."""
    for name in list(logging.root.manager.loggerDict):
        if name.startswith(package):
            logging.getLogger(name).setLevel(logging.CRITICAL)
