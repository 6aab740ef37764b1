"""What the leading worker does around a run: arguments, messages, reports, exit status."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.record.text import visible
from harness.record.verdict import ExitCode
from harness.runtime.commands import rerun_run
from harness.runtime.control import ControlError, ControlServer, control_path
from harness.runtime.options import Options, UsageError, parse_options
from harness.runtime.progress import summary_line
from harness.runtime.stop import StopRequest
from harness.runtime.world import World

if TYPE_CHECKING:
    from harness.runtime.leader import RunEnd
    from harness.runtime.preflight import Preflight


def lead(world: World, argv: Sequence[str]) -> int:
    """Run what the command line asks for and return the run's exit code."""
    try:
        # First thing, so that workers that wait learn of every kind of end.
        server = ControlServer(control_path(world))
    except ControlError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return int(ExitCode.HARNESS_ERROR)
    stop = StopRequest()
    stop.install()
    try:
        return int(_lead(world, parse_options(argv, "launch/run.py"), server, stop))
    except UsageError as error:
        # Every node's leader finds the same mistakes; one of them tells.
        for problem in error.problems if world.is_run_leader else ():
            print(visible(problem), file=sys.stderr)  # noqa: T201
        return int(error.exit_code)
    except Exception:  # noqa: BLE001 (an exit code of its own, so that no check seems to fail)
        traceback.print_exc()
        return int(ExitCode.HARNESS_ERROR)
    finally:
        server.close()


def _lead(world: World, options: Options, server: ControlServer, stop: StopRequest) -> ExitCode:
    from harness.runtime.preflight import check

    preflight = check(world, options)
    for warning in preflight.warnings:
        print(warning, file=sys.stderr)  # noqa: T201
    if options.dry_run:
        show_plan(preflight, world, options)
        return ExitCode.OK
    from harness.runtime.leader import Leader
    from harness.runtime.run_folder import RunFolderError
    from reports.console import scenario_line

    try:
        leader = Leader(world, options, preflight, server, stop, describe=scenario_line)
    except RunFolderError as error:
        raise UsageError([str(error)]) from error
    end = leader.run()
    try:
        _write_reports(end)
    except Exception:  # noqa: BLE001 (the records are whole; only their documents are not)
        problem = "the reports could not be written:\n" + traceback.format_exc()
        print(problem, file=sys.stderr)  # noqa: T201
        end = leader.finish(end.exit_code or ExitCode.HARNESS_ERROR, problem)
        print(summary_line(end.results, end.exit_code, end.duration_s), flush=True)  # noqa: T201
    return end.exit_code


def show_plan(preflight: Preflight, world: World, options: Options) -> None:
    """Print what would run, and the command for it."""
    for item in preflight.planned:
        print(f"{item.scenario.id}  {item.num_ranks} ranks on {item.device}  {item.file}")  # noqa: T201
    print(  # noqa: T201
        f"{len(preflight.planned)} scenarios, isolation {preflight.isolation}: "
        + rerun_run(world, replace(options, dry_run=False))
    )


def _write_reports(end: RunEnd) -> None:
    """Write the documents of a run and print its summary, whose last line is the exit code's."""
    from reports.console import print_summary
    from reports.render import read_summary, write_documents

    summary = read_summary(end.folder.path)
    write_documents(summary, end.folder.path)
    print_summary(summary)
