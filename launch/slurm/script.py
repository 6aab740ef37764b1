"""The text of a job script: a pure function of what is asked for."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from launch.slurm.cluster import Cluster
from launch.slurm.parts import Group


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One sbatch call.

    Attributes:
        name: Name of the job.
        group: Its parts.
        folder: Folder of the submission, absolute and on a shared file system.
        project: Root of the project on the nodes.
        scenarios: Paths of scenarios, absolute.
        run_words: Further arguments of ``launch/run.py``.
        exclude: Nodes to leave out beside those of the cluster file.
        dependency: As sbatch takes it, such as ``afterany:123``.
    """

    name: str
    cluster: Cluster
    group: Group
    folder: str
    project: str
    scenarios: tuple[str, ...]
    run_words: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    dependency: str | None = None
    sbatch: tuple[str, ...] = ()


def directives(job: Job) -> tuple[tuple[str, str], ...]:
    """Return the ``#SBATCH`` directives with the reason for each, in order."""
    cluster, group = job.cluster, job.group
    first = group.parts[0].number
    log = (
        f"{job.folder}/logs/%x-%j.out" if not group.is_array else f"{job.folder}/logs/%x-%A_%a.out"
    )
    excluded = ",".join(filter(None, (cluster.exclude, *job.exclude)))
    found: list[tuple[str, str | None, str]] = [
        ("--job-name", job.name, ""),
        ("--account", cluster.account, "who pays"),
        ("--partition", cluster.partition, ""),
        ("--qos", cluster.qos, ""),
        ("--nodes", str(group.nodes), "as many as the ranks of its scenarios fill"),
        ("--segment", _segment(cluster, group.nodes), "keep a CP group in one NVLink domain"),
        ("--ntasks-per-node", "1", "one torchrun a node"),
        *_gpus(cluster),
        ("--mem", cluster.mem, "0: all memory, which --exclusive alone does not give"),
        ("--time", cluster.time, ""),
        ("--constraint", cluster.constraint, ""),
        ("--reservation", cluster.reservation, ""),
        ("--exclude", excluded or None, "nodes under suspicion"),
        ("--dependency", job.dependency, ""),
        ("--array", _array(group, first), "one element per part" if group.is_array else ""),
        ("--signal", _signal(cluster), "warn the batch shell, which passes it on"),
        ("--output", log, ""),
    ]
    lines = [(f"{name}={_word(value)}", why) for name, value, why in found if value is not None]
    if cluster.exclusive:
        lines.append(("--exclusive", "no neighbour in timings and crashes"))
    lines.append(("--no-requeue", "a lost node ends the job; what is unfinished is resumed"))
    lines.append(("--open-mode=append", ""))
    lines += [(_word(argument), "as asked for") for argument in (*cluster.sbatch, *job.sbatch)]
    return tuple(lines)


def _word(text: str) -> str:
    return text if shlex.quote(text) == text or text.startswith("--") else shlex.quote(text)


def _gpus(cluster: Cluster) -> list[tuple[str, str | None, str]]:
    count = str(cluster.ranks_per_node)
    typed = f"{cluster.gpu_type}:{count}" if cluster.gpu_type else count
    if cluster.gpus == "per_node":
        return [("--gpus-per-node", typed, "one GPU a rank")]
    if cluster.gpus == "gres":
        return [("--gres", f"gpu:{typed}", "one GPU a rank")]
    return []


def _segment(cluster: Cluster, nodes: int) -> str | None:
    """Up to a domain, the nodes themselves; beyond, their largest divisor that fits in one."""
    domain = cluster.nodes_per_domain
    if domain is None:
        return None
    return str(max(size for size in range(1, min(nodes, domain) + 1) if nodes % size == 0))


def _array(group: Group, first: int) -> str | None:
    if not group.is_array:
        return None
    throttle = "" if group.throttle is None else f"%{group.throttle}"
    return f"{first}-{group.parts[-1].number}{throttle}"


def _signal(cluster: Cluster) -> str | None:
    return f"B:USR1@{cluster.signal_s}" if cluster.signal_s else None


def script_text(job: Job) -> str:
    """Return the script of a job; every value in it is quoted."""
    cluster = job.cluster
    python = cluster.python if cluster.python.startswith("/") else f"{job.project}/{cluster.python}"
    return template("job.sbatch.j2").render(
        directives=directives(job),
        job=job,
        first=job.group.parts[0].number,
        environment=cluster.environment,
        step=_step(job),
        python=python,
        container=cluster.container.image,
    )


def _step(job: Job) -> list[str]:
    """Return further arguments of srun, each one word."""
    container = job.cluster.container
    words = []
    if container.image is not None:
        words.append(f"--container-image={container.image}")
        if container.mounts:
            words.append("--container-mounts=" + ",".join(container.mounts))
        if not container.mount_home:
            words.append("--no-container-mount-home")
        if container.env:
            words.append("--container-env=" + ",".join(container.env))
    return [*words, *job.cluster.srun]


@cache
def template(name: str) -> Template:
    """Return a template for shell scripts, whose values all go through the filter ``quote``."""
    # No HTML here: every value goes through the filter `quote` instead.
    environment = Environment(  # noqa: S701
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = shlex.quote
    return environment.get_template(name)
