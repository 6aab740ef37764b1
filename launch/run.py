"""The torchrun entry: ``torchrun --nproc-per-node N launch/run.py --scenario PATH...``.

One worker of the node leads; the others wait, without torch, until it needs them or ends. Nothing
is imported at module level beyond the standard library: rank processes import this file again as
their main module.
"""

import os
import signal
import sys
from pathlib import Path

PROJECT_ROOT = str(Path(__file__).resolve().parents[1])


def main() -> int:
    """Lead or wait; return the exit status."""
    # The folder of this script, which Python puts first, would offer its modules as top-level ones.
    sys.path[0] = PROJECT_ROOT
    from harness.runtime.death import die_with_parent

    die_with_parent()
    from harness.runtime.world import World, WorldError

    try:
        world = World.from_environment(os.environ)
    except WorldError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    if world.is_node_leader:
        from launch.lead import lead

        return lead(world, sys.argv[1:])
    return wait_for_orders(world)


def wait_for_orders(world: "World") -> int:  # type: ignore[name-defined] # noqa: F821
    """Sleep until the leader ends or gives an order; print nothing in between."""
    # torchrun passes Ctrl-C on to every worker; a traceback of each would bury the leader's words.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Slurm's warning reaches every process of a step; the leader ends the run upon it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    from harness.runtime.control import connect, control_path

    channel = connect(control_path(world), {"worker": world.local_rank})
    order = None if channel is None else channel.receive()
    if channel is None or order is None:
        return 0
    from harness.runtime.follower import follow

    return follow(channel, order)


if __name__ == "__main__":
    sys.exit(main())
