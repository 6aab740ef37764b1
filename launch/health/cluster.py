"""Checks of a cluster: commands, partitions, and what its compute nodes say of themselves."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch.health.check import Check, Health
from launch.slurm.client import Slurm, SlurmError
from launch.slurm.cluster import Cluster

NEEDED = ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun")
MAX_SKEW_S = 2.0
"""Clocks further apart make times in records hard to read; no verdict depends on them."""
_PROBE = Path(__file__).with_name("node_probe.py")


def cluster_checks(cluster: Cluster, slurm: Slurm, shared: Path, nodes: int) -> Iterator[Check]:
    """Look at a cluster.

    Args:
        cluster: What its file says.
        slurm: The client.
        shared: Folder that all nodes shall see.
        nodes: Compute nodes to ask, by one short job.
    """
    missing = [name for name in NEEDED if shutil.which(name) is None]
    yield Check(
        name="Slurm commands",
        health=Health.BAD if missing else Health.GOOD,
        found=f"missing {', '.join(missing)}" if missing else "all there",
        advice="run this on a login node",
    )
    if missing:
        return
    controller = _controller(slurm)
    yield controller
    if controller.health is Health.BAD:
        return
    yield _accounting(slurm)
    yield _partition(cluster, slurm)
    if cluster.container.image is not None:
        yield _container(slurm)
    yield from _nodes(cluster, slurm, shared, nodes)


def _controller(slurm: Slurm) -> Check:
    try:
        text = slurm.output(["scontrol", "ping"]).strip().splitlines()[0]
    except (SlurmError, IndexError) as error:
        return Check(name="controller", health=Health.BAD, found=str(error))
    return Check(name="controller", health=Health.GOOD, found=text)


def _accounting(slurm: Slurm) -> Check:
    try:
        slurm.output(["sacct", "-n", "-X", "-j", "1"])
    except SlurmError as error:
        return Check(
            name="accounting",
            health=Health.ABSENT,
            found=str(error),
            advice="collect soon after a job's end: finished jobs are forgotten after minutes",
        )
    return Check(name="accounting", health=Health.GOOD, found="on")


def _partition(cluster: Cluster, slurm: Slurm) -> Check:
    name = "partition"
    try:
        lines = slurm.output(["sinfo", "-h", "-o", "%P|%a|%D|%G|%l"]).splitlines()
    except SlurmError as error:
        return Check(name=name, health=Health.BAD, found=str(error))
    rows = [line.split("|") for line in lines if line.count("|") == 4]
    wanted = cluster.partition
    chosen = [row for row in rows if (row[0].rstrip("*") == wanted if wanted else "*" in row[0])]
    names = ", ".join(row[0] for row in rows)
    if not chosen:
        what = f"no partition {wanted}" if wanted else "no default partition"
        return Check(
            name=name, health=Health.BAD, found=f"{what}; there are {names}", advice="set partition"
        )
    partition, up, number, gres, limit = chosen[0]
    found = f"{partition} {up}, {number} nodes, GRES {gres}, limit {limit}"
    if up != "up":
        return Check(name=name, health=Health.BAD, found=found, advice="choose another partition")
    if cluster.gpus != "none" and "gpu" not in gres:
        return Check(
            name=name, health=Health.BAD, found=found,
            advice="no GPUs are declared here: set gpus: none in the cluster file",
        )  # fmt: skip
    return Check(name=name, health=Health.GOOD, found=found)


def _container(slurm: Slurm) -> Check:
    name = "container plug-in"
    try:
        text = slurm.output(["srun", "--help"])
    except SlurmError as error:
        return Check(name=name, health=Health.BAD, found=str(error))
    if "--container-image" in text:
        return Check(name=name, health=Health.GOOD, found="srun has --container-image")
    return Check(
        name=name,
        health=Health.BAD,
        found="srun has no --container-image",
        advice="have pyxis installed, or leave container.image out",
    )


def _nodes(cluster: Cluster, slurm: Slurm, shared: Path, nodes: int) -> Iterator[Check]:
    """Ask compute nodes by one short job."""
    token = f".dsa-harness-{os.urandom(4).hex()}"
    words = ["srun", f"--nodes={nodes}", "--ntasks-per-node=1", f"--ntasks={nodes}", "--time=2"]
    words += [f"--{name}={value}" for name in ("partition", "account", "qos", "constraint")
              if (value := getattr(cluster, name)) is not None]  # fmt: skip
    python = "python3" if cluster.project is None else cluster.python
    try:
        shared.mkdir(parents=True, exist_ok=True)
        (shared / token).touch()
        begin = time.time()
        text = slurm.output([*words, python, str(_PROBE), str(shared.resolve()), token])
        end = time.time()
    except (OSError, SlurmError) as error:
        yield Check(
            name="compute nodes", health=Health.BAD, found=str(error),
            advice="try the srun by hand; see `sinfo` for free nodes",
        )  # fmt: skip
        return
    finally:
        for path in shared.glob(f"{token}*"):
            path.unlink(missing_ok=True)
    answers = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    answers.sort(key=lambda answer: str(answer["host"]))
    yield Check(
        name="compute nodes",
        health=Health.GOOD if len(answers) == nodes else Health.BAD,
        found=f"{len(answers)} of {nodes} answered: {', '.join(a['host'] for a in answers)}",
    )
    for answer in answers:
        yield from _node(answer, begin, end)
    yield _domain(answers)


def _node(answer: dict[str, Any], begin: float, end: float) -> Iterator[Check]:
    host = answer["host"]
    seen = answer["shared"] == "seen and written"
    yield Check(
        name=f"{host}: shared folder",
        health=Health.GOOD if seen else Health.BAD,
        found=answer["shared"],
        advice="give --shared a folder on a file system that all nodes mount",
    )
    # Its clock was read between these two moments of ours.
    skew = max(begin - answer["time"], answer["time"] - end, 0.0)
    yield Check(
        name=f"{host}: clock",
        health=Health.GOOD if skew <= MAX_SKEW_S else Health.ABSENT,
        found=f"off by {skew:.1f} s" if skew > MAX_SKEW_S else "agrees",
        advice="times in records of several nodes will not line up; verdicts do not depend on them",
    )
    if answer["gpus"]:
        state = answer["fabric"].get("state", "unknown")
        yield Check(
            name=f"{host}: fabric",
            health=Health.GOOD if state.lower() == "completed" else Health.BAD,
            found=f"state {state}, clique {answer['fabric'].get('clique_id', 'unknown')}",
            advice="fabric registration is not complete: multi-node NVLink will not work",
        )
        yield Check(
            name=f"{host}: IMEX",
            health=Health.GOOD if answer["imex"] else Health.ABSENT,
            found=", ".join(answer["imex"]) or "no channel",
            advice="no IMEX channel: multi-node NVLink needs the site's prolog to make one",
        )
    shown = ", ".join(f"{name}={value}" for name, value in answer["variables"].items())
    found = f"Python {answer['python']}, {answer['gpus']} GPUs, {shown or 'no variables of note'}"
    yield Check(name=f"{host}: environment", health=Health.GOOD, found=found)


def _domain(answers: list[dict[str, Any]]) -> Check:
    """Nodes of one NVLink domain agree on cluster UUID and clique."""
    name = "NVLink domain"
    places = {
        (answer["fabric"].get("cluster_uuid"), answer["fabric"].get("clique_id"))
        for answer in answers
        if answer["fabric"].get("cluster_uuid")
    }
    if not places:
        return Check(name=name, health=Health.ABSENT, found="no node tells its cluster UUID")
    if len(places) == 1:
        uuid, clique = next(iter(places))
        return Check(name=name, health=Health.GOOD, found=f"one: {uuid}, clique {clique}")
    return Check(
        name=name,
        health=Health.ABSENT,
        found=f"{len(places)} domains",
        advice="use --segment (nodes_per_domain) so that a CP group stays in one",
    )
