"""``dsa-harness doctor``: what this machine or a cluster has, what it lacks, and what to do."""

from __future__ import annotations

from pathlib import Path

import click

from harness.record.verdict import ExitCode
from launch.paths import PATH


@click.command(name="doctor")
@click.option("--cluster", "cluster_file", type=PATH, metavar="FILE",
              help="Look at a cluster instead, by one short job.")  # fmt: skip
@click.option("--shared", type=PATH, default=Path("submissions"),
              show_default=True, metavar="DIR", help="Folder that all nodes see.")  # fmt: skip
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Compute nodes to ask.")  # fmt: skip
@click.option("--out", type=PATH, default=Path("runs"), show_default=True,
              metavar="DIR", help="Folder that runs shall be written to.")  # fmt: skip
def doctor(cluster_file: Path | None, shared: Path, nodes: int, out: Path) -> int:
    """Show what this machine has and lacks, a line each; exit code 1 when something needed is bad.

    What is only absent costs scenarios, which are then not_run: the line says which.
    """
    from launch.health.check import Check, exit_code

    found: list[Check] = []
    if cluster_file is None:
        from launch.health.node import node_checks

        checks = node_checks(out)
    else:
        from launch.health.cluster import cluster_checks
        from launch.slurm.client import Slurm
        from launch.slurm.cluster import ClusterError, read_cluster

        try:
            cluster = read_cluster(cluster_file)
        except ClusterError as error:
            click.echo(str(error), err=True)
            return int(ExitCode.USAGE)
        checks = cluster_checks(cluster, Slurm(), shared, nodes)
    for check in checks:
        click.echo(check.text)
        found.append(check)
    return int(exit_code(found))
