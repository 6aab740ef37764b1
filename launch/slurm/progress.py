"""How a submission stands: Slurm's states beside what the parts have written."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.record.files import RUN_FILE, RecordFileError, read_record
from harness.record.result import RunRecord
from launch.slurm.client import INFRASTRUCTURE_STATES, RUNNING_STATES, JobState
from launch.slurm.submission import Submission


class PartState(enum.StrEnum):
    """How a part stands."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    """Its run came to its end, whatever the verdicts."""
    LOST = "lost"
    """A node failed, or the job was preempted: infrastructure, to be run again."""
    CUT = "cut short"
    """Its time or memory ran out, or it was cancelled: what was measured stays."""
    FAILED = "failed"
    """The job ended without a run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartProgress:
    """One part.

    Attributes:
        slurm: What Slurm says, None where the part was never submitted.
        run: Its run folder, None before there is one.
        exit_code: Of its run, None while it has none.
        done: Scenarios with a result.
    """

    number: int
    state: PartState
    slurm: JobState | None
    run: Path | None
    exit_code: int | None
    done: int
    total: int

    @property
    def over(self) -> bool:
        """True when Slurm has finished with it."""
        return self.state not in (PartState.WAITING, PartState.RUNNING)

    @property
    def text(self) -> str:
        """One line."""
        slurm = "not submitted" if self.slurm is None else f"{self.slurm.id} {self.slurm.state}"
        reason = self.slurm.reason if self.slurm is not None else ""
        shown = f" ({reason})" if reason not in ("", "None") else ""
        code = "" if self.exit_code is None else f", exit code {self.exit_code}"
        return (
            f"part {self.number}: {self.state}, {self.done} of {self.total} scenarios{code}; "
            f"Slurm: {slurm}{shown}"
        )


def progress(
    folder: Path, submission: Submission, states: Mapping[str, JobState]
) -> tuple[PartProgress, ...]:
    """Return how each part stands."""
    return tuple(
        _part(folder, submission, part.number, len(part.ids), states) for part in submission.parts
    )


def _part(
    folder: Path,
    submission: Submission,
    number: int,
    total: int,
    states: Mapping[str, JobState],
) -> PartProgress:
    job = submission.job_of(number)
    slurm = None if job is None else states.get(job.slurm_id(number)) or states.get(job.id)
    run = newest_run(folder / "parts" / str(number))
    record = None if run is None else _record(run)
    code = None if record is None else record.exit_code
    done = 0 if run is None else sum(1 for _ in (run / "results").glob("[!.]*.json"))
    return PartProgress(
        number=number,
        state=_state(slurm, code, done, total, run),
        slurm=slurm,
        run=run,
        exit_code=code,
        done=done,
        total=total,
    )


def newest_run(part: Path) -> Path | None:
    """Return the run folder of a part, None before there is one."""
    runs = sorted(part.glob("*-part"))
    return runs[-1] if runs else None


def _record(run: Path) -> RunRecord | None:
    try:
        return read_record(run / RUN_FILE, RunRecord)
    except RecordFileError:
        return None


_STOPPED_CODES = (130, 143)
"""Exit codes of a run that was told to stop before its end."""


def _state(
    slurm: JobState | None, code: int | None, done: int, total: int, run: Path | None
) -> PartState:
    if slurm is None or slurm.state == "PENDING":
        return PartState.WAITING
    if slurm.state in RUNNING_STATES:
        return PartState.RUNNING
    if code is not None and code not in _STOPPED_CODES and done >= total:
        return PartState.DONE
    if slurm.state in INFRASTRUCTURE_STATES:
        return PartState.LOST
    if run is None and slurm.state == "FAILED":
        return PartState.FAILED
    return PartState.CUT
