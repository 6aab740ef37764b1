"""``dsa-harness run``: the torchrun entry without torchrun, through torch elastic's launcher.

The launcher runs in this process. Unlike ``torchrun`` it then tells the leader's exit status apart
from others, and prints nothing of its own.
"""

from __future__ import annotations

import logging
import sys
import uuid
from collections.abc import Callable
from typing import Any

import click

from harness.record.verdict import ExitCode
from harness.runtime.commands import RUN_SCRIPT, run_words
from harness.runtime.options import FLAGS, Flag, UsageError, make_options
from harness.runtime.world import World

_PROG = "dsa-harness run"


def _with_flags(command: Callable[..., int]) -> Callable[..., int]:
    for flag in reversed(FLAGS):
        command = click.option(*flag.names, flag.key, **_settings(flag))(command)
    return command


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
    default=1,
    show_default=True,
    metavar="N",
    help="Rank processes on this machine.",
)
@click.option(
    "--scenario", "more", multiple=True, metavar="PATH", help="The same as PATH, as torchrun's."
)
@click.argument("paths", metavar="PATH...", nargs=-1)
@_with_flags
def run(num_ranks: int, paths: tuple[str, ...], more: tuple[str, ...], **values: Any) -> int:
    """Run the scenarios of files and folders over N ranks, and return the run's exit code."""
    from harness.runtime.preflight import check
    from launch.lead import show_plan

    world = World(world_size=num_ranks, local_world_size=num_ranks, launcher="torchrun")
    try:
        options = make_options((*paths, *more), values, _PROG)
        # The leader checks again; here a mistake costs no start of workers.
        preflight = check(world, options)
    except UsageError as error:
        for problem in error.problems:
            click.echo(problem, err=True)
        return int(error.exit_code)
    if options.dry_run:
        show_plan(preflight, world, options)
        return int(ExitCode.OK)
    return int(launch([str(RUN_SCRIPT), *run_words(options)], num_ranks))


def launch(command: list[str], num_ranks: int) -> ExitCode:
    """Start ``num_ranks`` workers of a Python script and return the leader's exit code."""
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
        elastic_launch(config, sys.executable)("-u", *command)
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
