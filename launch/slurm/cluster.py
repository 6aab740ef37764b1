"""What a cluster is like: the cluster file, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from harness.scenario import fields as f
from harness.scenario.messages import explain
from harness.scenario.yaml12 import parse


class ClusterError(ValueError):
    """A cluster file cannot be used; one line per problem, each with its place."""


Plain = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,:@/+=%\[\]()&|*-]+$", max_length=300)]
"""A value of a directive: nothing that a shell or sbatch would read as more than one word."""
Minutes = Annotated[str, Field(pattern=r"^(\d+-)?\d{1,3}(:\d{2}){0,2}$")]
"""A time as Slurm writes it, such as 04:00:00."""
Argument = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=500)]
"""One argument of a command, quoted wherever it is written."""
EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]


class Container(f.Section):
    """Container of a step; needs the pyxis plug-in."""

    image: Argument | None = None
    """A .sqsh path or registry#image:tag; null runs on bare metal."""
    mounts: list[Argument] = Field(default=[])
    """``SRC:DST[:ro]``; the run folder's file system has to be among them."""
    mount_home: bool = False
    """Whether the home folder is mounted."""
    env: list[EnvironmentName] = Field(default=[])
    """Variables of the job that win over the image's own."""


class Cluster(f.Section):
    """A cluster: how jobs are asked for, and what a node is like."""

    cluster: f.Word
    """Name of the cluster; this key is what tells a cluster file."""
    summary: f.Line
    """One sentence: what machine this is."""
    ranks_per_node: f.Size
    """Rank processes of a node: its GPUs, or as many CPU ranks as it shall carry."""
    nodes_per_domain: f.Size | None = None
    """Nodes of one NVLink domain (18 in an NVL72 rack): asks for ``--segment`` (Slurm 24.05 with
    topology/block), so that a context-parallel group stays inside. null leaves it out."""
    gpus: Literal["per_node", "gres", "none"] = "none"
    """Directive that asks for GPUs: ``--gpus-per-node``, ``--gres``, or none where a site has
    neither."""
    gpu_type: f.Word | None = None
    """Type in that directive, such as gb200."""
    partition: Plain | None = None
    account: Plain | None = None
    qos: Plain | None = None
    time: Minutes | None = None
    """Time limit of a job."""
    constraint: Plain | None = None
    reservation: Plain | None = None
    exclude: Plain | None = None
    """Nodes that are not to be used, as a Slurm host list."""
    exclusive: bool = True
    """Whether nodes are asked for whole."""
    mem: Plain | None = "0"
    """Memory of a node; 0 asks for all of it, which ``--exclusive`` alone does not give."""
    signal_s: Annotated[int, Field(ge=0, le=3600)] = 180
    """Seconds before the limit at which Slurm warns; it may come up to 60 s early. 0: never."""
    environment: dict[EnvironmentName, Argument] = Field(default={})
    """Variables of the job."""
    container: Container = Container()
    python: Argument = ".venv/bin/python"
    """Python of the ranks; a relative path is one inside the project."""
    project: Argument | None = None
    """The project's root on the nodes, where it is not the one this command runs from."""
    sbatch: list[Argument] = Field(default=[])
    """Further arguments of sbatch."""
    srun: list[Argument] = Field(default=[])
    """Further arguments of srun, such as --mpi=pmix."""


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file.

    Raises:
        ClusterError: with one line for each thing that is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ClusterError(f"{path}: cannot be read: {reason}; see configs/clusters") from error
    document, problems = parse(text, str(path))
    if problems:
        raise ClusterError("\n".join(str(problem) for problem in problems))
    return _validated(document.data, lambda error: explain(error, document, root=Cluster))


def changed(cluster: Cluster, values: dict[str, Any]) -> Cluster:
    """Return a cluster with the values that the command line gives.

    Raises:
        ClusterError: for a value that no directive may have.
    """
    data = cluster.model_dump() | {k: v for k, v in values.items() if v is not None}

    def told(error: ValidationError) -> list[str]:
        return [
            f"--{str(item['loc'][0]).replace('_', '-')}: {item['msg']}, found {item['input']!r}"
            for item in error.errors(include_url=False)
        ]

    return _validated(data, told)


def _validated(data: Any, told: Any) -> Cluster:
    try:
        return Cluster.model_validate(data)
    except ValidationError as error:
        raise ClusterError("\n".join(str(problem) for problem in told(error))) from error
