"""A submission: its folder, what was asked for, and which jobs carry which parts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from harness.record.files import RecordFileError, read_record, safe_name, write_record, write_text
from launch.slurm.client import Slurm, SlurmError
from launch.slurm.parts import Group, Part
from launch.slurm.script import Job, script_text

FILE = "submission.json"
"""Name of the record inside a submission's folder."""


class SubmissionError(ValueError):
    """A submission cannot be made or read; one line that says what to change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SubmittedJob:
    """One sbatch call.

    Attributes:
        id: Slurm's job id; empty before it was submitted.
        script: Script file inside the submission's folder.
        parts: Numbers of its parts; with several it is an array whose indices they are.
    """

    id: str
    script: str
    nodes: int
    parts: tuple[int, ...]

    def slurm_id(self, part: int) -> str:
        """Return the id under which Slurm knows a part."""
        return f"{self.id}_{part}" if len(self.parts) > 1 else self.id


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """What ``submission.json`` holds.

    Attributes:
        parts: All parts, by number.
        jobs: In the order of submission; a later job that carries a part again
            replaces the earlier.
        suspects: Nodes that were lost under a job and are left out of later ones.
    """

    schema_version: int = 1
    name: str
    created_at: str
    cluster: str
    scenarios: tuple[str, ...]
    run_words: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    jobs: tuple[SubmittedJob, ...] = ()
    suspects: tuple[str, ...] = field(default=())

    def job_of(self, part: int) -> SubmittedJob | None:
        """Return the job that carries a part, the last one where there were several."""
        carriers = [job for job in self.jobs if part in job.parts and job.id]
        return carriers[-1] if carriers else None


def read_submission(folder: Path) -> Submission:
    """Read a submission's record.

    Raises:
        SubmissionError: if the folder is no submission.
    """
    try:
        return read_record(folder / FILE, Submission)
    except RecordFileError as error:
        raise SubmissionError(f"{error}; give the folder that `submit` printed") from error


def make_folder(out: Path, name: str, groups: Sequence[Group]) -> Path:
    """Make a submission's folder with a folder and a list of ids for each part.

    Raises:
        SubmissionError: if it cannot be made.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    folder = out.resolve() / f"{stamp}-{safe_name(name)}-{os.urandom(2).hex()}"
    try:
        (folder / "logs").mkdir(parents=True)
        for group in groups:
            for part in group.parts:
                text = "".join(f"{scenario}\n" for scenario in part.ids)
                write_text(folder / "parts" / str(part.number) / "ids.txt", text)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise SubmissionError(
            f"--out {out}: cannot make {folder}: {error.strerror}; choose a folder on a shared "
            "file system with room"
        ) from error
    return folder


def write_scripts(folder: Path, jobs: Sequence[Job], *, prefix: str = "job") -> list[Path]:
    """Write the scripts of jobs and return their files."""
    paths = []
    for number, job in enumerate(jobs):
        path = folder / f"{prefix}-{number}-{job.group.nodes}n.sbatch"
        write_text(path, script_text(job))
        paths.append(path)
    return paths


def submit_all(
    slurm: Slurm, jobs: Sequence[Job], paths: Sequence[Path], told: Callable[[str], None]
) -> tuple[SubmittedJob, ...]:
    """Submit scripts; when one is refused, those before it are cancelled again.

    Raises:
        SubmissionError: with the reason; nothing is left submitted then, or the line says what is.
    """
    done: list[SubmittedJob] = []
    try:
        for job, path in zip(jobs, paths, strict=True):
            number = slurm.submit(str(path))
            done.append(
                SubmittedJob(
                    id=number,
                    script=path.name,
                    nodes=job.group.nodes,
                    parts=tuple(part.number for part in job.group.parts),
                )
            )
            told(f"job {number}: {_size(job.group)}, {path.name}")
    except SlurmError as error:
        raise SubmissionError(f"{error} ({path}){_undo(slurm, done)}") from error
    return tuple(done)


def _undo(slurm: Slurm, done: Sequence[SubmittedJob]) -> str:
    if not done:
        return "; nothing was submitted"
    ids = ", ".join(job.id for job in done)
    try:
        slurm.cancel(job.id for job in done)
    except SlurmError as error:
        return f"; jobs {ids} were submitted before and could not be cancelled: {error}"
    return f"; jobs {ids}, submitted before, are cancelled again"


def _size(group: Group) -> str:
    scenarios = sum(len(part.ids) for part in group.parts)
    array = f", array of {len(group.parts)}" if group.is_array else ""
    return f"{group.nodes} node(s){array}, {scenarios} scenarios"


def write_submission(folder: Path, submission: Submission) -> None:
    """Write or replace a submission's record."""
    write_record(folder / FILE, submission)


def with_jobs(submission: Submission, jobs: Sequence[SubmittedJob]) -> Submission:
    """Return a submission with further jobs."""
    return replace(submission, jobs=(*submission.jobs, *jobs))
