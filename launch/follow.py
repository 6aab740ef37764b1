"""What the leading worker of a node does when another node leads the run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from harness.record.verdict import ExitCode
from harness.runtime.control import ControlServer
from harness.runtime.hub import shared_folder
from harness.runtime.link import LinkError
from harness.runtime.node_follower import LeaderGoneError, follow_leader, node_name, say
from harness.runtime.options import Options
from harness.runtime.run_lock import forget_leader
from harness.runtime.stop import StopRequest
from harness.runtime.world import World

_FINISHING = ".finishing"
"""Folder that the one node makes which brings a run folder up to date."""


def follow(world: World, options: Options, server: ControlServer, stop: StopRequest) -> int:
    """Serve the leader of the run and return the run's exit code.

    Nothing is printed unless this node has a problem of its own.
    """
    try:
        return follow_leader(world, shared_folder(options), server, stop)
    except LinkError as error:
        say(str(error))
    except LeaderGoneError as gone:
        if gone.run is not None:
            report_without_leader(world, gone.run)
        else:
            say(f"{node_name(world)}: {gone}")
    return int(ExitCode.HARNESS_ERROR)


def report_without_leader(world: World, run: Path) -> None:
    """Judge what has no verdict yet and write the documents, on one of the nodes that are left."""
    mark = run / _FINISHING
    try:
        mark.mkdir()
    except OSError:
        return  # another node is at it, or the folder went with the leader's node
    try:
        _report(run)
        forget_leader(run)
    finally:
        with suppress(OSError):
            mark.rmdir()
    say(
        f"{node_name(world)}: the leader of the run is gone; what was done until then is in "
        f"{run}/report.md; finish the run with --resume {run}"
    )


def _report(run: Path) -> None:
    from harness.runtime.recovery import recover
    from reports.render import read_summary, write_documents

    recover(run)
    write_documents(read_summary(run), run)
