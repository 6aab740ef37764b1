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
from harness.runtime.storage import storage_problem
from harness.runtime.world import World
from reports.text import counted

if TYPE_CHECKING:
    from harness.runtime.hub import Hub
    from harness.runtime.leader import Leader, RunEnd
    from harness.runtime.preflight import Preflight


_WRAPPED = (
    "--{tool}: expected `dsa-harness run --ranks N --{tool} ...`, which starts the workers "
    "under the tool; under torchrun they run already"
)


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
    hub: Hub | None = None
    code = ExitCode.HARNESS_ERROR
    try:
        options = parse_options(argv, "launch/run.py")
        for tool, asked in (("sanitizer", options.sanitizer), ("profile", options.profile)):
            if asked is not None:
                raise UsageError([_WRAPPED.format(tool=tool)])
        if not world.is_run_leader:
            from launch.follow import follow

            return follow(world, options, server, stop)
        hub = _open_hub(world, options, stop)
        code = _lead(world, options, server, stop, hub)
    except UsageError as error:
        # Every node's leader finds the same mistakes; one of them tells.
        for problem in error.problems if world.is_run_leader else ():
            print(visible(problem), file=sys.stderr)  # noqa: T201
        code = error.exit_code
    except Exception:  # noqa: BLE001 (an exit code of its own, so that no check seems to fail)
        traceback.print_exc()
    finally:
        if hub is not None:
            hub.end(code)
        server.close()
    return int(code)


def _open_hub(world: World, options: Options, stop: StopRequest) -> Hub | None:
    """Have the leaders of the other nodes find this one, before anything else can fail."""
    if world.num_nodes == 1:
        return None
    from harness.runtime.hub import Hub, shared_folder
    from harness.runtime.run_folder import RunFolderError, check_writable

    out = shared_folder(options)
    try:
        check_writable(out)
        return Hub(world, out, stop)
    except (RunFolderError, OSError) as error:
        raise UsageError([str(error)]) from error


def _lead(
    world: World, options: Options, server: ControlServer, stop: StopRequest, hub: Hub | None
) -> ExitCode:
    from harness.runtime.preflight import check

    preflight = check(world, options)
    for warning in preflight.warnings:
        print(warning, file=sys.stderr)  # noqa: T201
    if options.dry_run:
        show_plan(preflight, world, preflight.options)
        return ExitCode.OK
    from harness.runtime.leader import Leader
    from harness.runtime.run_folder import RunFolderError
    from reports.console import scenario_line

    try:
        leader = Leader(
            world, preflight.options, preflight, server, stop, describe=scenario_line, hub=hub
        )
    except RunFolderError as error:
        raise UsageError([str(error)]) from error
    try:
        end = leader.run()
        # Whoever starts a run in pieces writes the documents after the last one.
        return _finish(leader, end) if options.at_most is None else end.exit_code
    finally:
        leader.close()


def _finish(leader: Leader, end: RunEnd) -> ExitCode:
    """Write the documents; where that fails the records are whole, and the run says so."""
    try:
        _write_reports(end)
    except Exception as error:  # noqa: BLE001 (said, and kept in run.json)
        reason = storage_problem(error) if isinstance(error, OSError) else None
        problem = f"the reports could not be written: {reason}"
        if reason is None:
            problem = "the reports could not be written:\n" + traceback.format_exc()
        if reason is None or end.error is None:
            # One full disk is told of once.
            print(problem, file=sys.stderr)  # noqa: T201
        end = leader.finish(end.exit_code or ExitCode.HARNESS_ERROR, problem)
        print(summary_line(end.results, end.exit_code, end.duration_s), flush=True)  # noqa: T201
    return end.exit_code


def show_plan(preflight: Preflight, world: World, options: Options) -> None:
    """Print what would run, and the command for it."""
    planned = [item for item in preflight.planned if item.scenario.id not in preflight.done]
    for item in planned:
        ranks = f"{counted(item.num_ranks, 'rank')} on {item.device}"
        times = f"  {item.repeat} times" if item.repeat > 1 else ""
        print(f"{item.scenario.id}  {ranks}  {item.file}{times}")  # noqa: T201
    print(  # noqa: T201
        f"{counted(len(planned), 'scenario')}, isolation {preflight.isolation}: "
        + rerun_run(world, replace(options, dry_run=False))
    )


def _write_reports(end: RunEnd) -> None:
    """Write the documents of a run and print its summary, whose last line is the exit code's."""
    from reports.console import print_summary
    from reports.render import read_summary, write_documents

    summary = read_summary(end.folder.path)
    write_documents(summary, end.folder.path)
    print_summary(summary)
