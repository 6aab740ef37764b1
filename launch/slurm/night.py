"""The last job of a night: collects the parts, adds the night to the store and tells it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.record.files import write_text
from launch.slurm.client import Slurm, SlurmError
from launch.slurm.cluster import Cluster
from launch.slurm.script import template
from launch.slurm.submission import SubmissionError, read_submission

SCRIPT = "collect.sbatch"
"""Name of its script inside the submission's folder."""


def night_text(
    cluster: Cluster, folder: str, project: str, ids: Sequence[str], words: Sequence[str]
) -> str:
    """Return the script of the last job.

    Args:
        cluster: What the cluster is like; the job takes one core of one node.
        folder: Folder of the submission.
        project: Root of the project on the nodes.
        ids: Jobs that it waits for.
        words: Further arguments of ``dsa-harness nightly``.
    """
    python = cluster.python if cluster.python.startswith("/") else f"{project}/{cluster.python}"
    options = (
        ("--job-name", "dsa-collect"),
        ("--account", cluster.account),
        ("--partition", cluster.partition),
        ("--qos", cluster.qos),
        ("--nodes", "1"),
        ("--time", "00:30:00"),
        ("--output", f"{folder}/logs/%x-%j.out"),
    )
    lines = [(f"{name}={value}", "") for name, value in options if value is not None]
    if ids:
        waits = "afterany:" + ":".join(ids)
        lines.append((f"--dependency={waits}", "also after failed and lost jobs"))
    return template("collect.sbatch.j2").render(
        directives=lines, project=project, python=python, folder=folder, words=words
    )


def submit_night(
    slurm: Slurm, cluster: Cluster, folder: Path, project: str, words: Sequence[str]
) -> str:
    """Submit the last job and return its id; when it is refused, the night's jobs are cancelled.

    Raises:
        SubmissionError: with the reason.
    """
    submission = read_submission(folder)
    ids = [job.id for job in submission.jobs]
    path = folder / SCRIPT
    write_text(path, night_text(cluster, str(folder), project, ids, words))
    try:
        return slurm.submit(str(path))
    except SlurmError as error:
        slurm.cancel(ids)
        raise SubmissionError(
            f"{error} ({path}); jobs {', '.join(ids)}, submitted before, are cancelled again"
        ) from error
