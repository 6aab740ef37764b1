"""The few Slurm commands that are needed, each with a time limit and one clear line on failure."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TIMEOUT_S = 60.0
"""With the controller away, clients try again for minutes."""


class SlurmError(RuntimeError):
    """A Slurm command failed; one line that says which and why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobState:
    """What Slurm says of a job or array element.

    Attributes:
        id: Such as ``123`` or ``123_4``.
        state: In capitals, without what follows (``CANCELLED by 0``).
        reason: Why it is in that state, as Slurm words it.
        exit_code: ``code:signal``, empty while it is not known.
        nodes: Host list.
    """

    id: str
    state: str
    reason: str = ""
    exit_code: str = ""
    nodes: str = ""


RUNNING_STATES = frozenset(
    (
        "PENDING",
        "RUNNING",
        "CONFIGURING",
        "COMPLETING",
        "SUSPENDED",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESIZING",
        "SIGNALING",
        "SPECIAL_EXIT",
        "STAGE_OUT",
        "STOPPED",
    )
)
"""States that are not the last one."""
INFRASTRUCTURE_STATES = frozenset(["NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "REVOKED"])
"""Last states that say nothing about a kernel: what is unfinished may run again."""
UNKNOWN = "UNKNOWN"
"""State of a job that Slurm no longer remembers and did not account for."""

_SQUEUE_FORMAT = "%i|%T|%r|%N"


class Slurm:
    """The commands; ``calls`` counts them, for what must stay cheap on a shared controller."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self.calls: list[str] = []
        self._accounting = True

    def submit(self, script: str, *, test_only: bool = False) -> str:
        """Submit a script file and return the job's id.

        Raises:
            SlurmError: if it is refused.
        """
        words = ["sbatch", "--parsable", *(["--test-only"] if test_only else []), script]
        # With several clusters the answer is `id;cluster`.
        return self._run(words).strip().partition(";")[0]

    def cancel(self, ids: Iterable[str]) -> None:
        """Cancel jobs, pending or running.

        Raises:
            SlurmError: if that fails.
        """
        wanted = list(ids)
        if wanted:
            self._run(["scancel", *wanted])

    def states(self, ids: Sequence[str]) -> dict[str, JobState]:
        """Return the states of jobs and of all elements of arrays, by one query where possible.

        A job that the queue has forgotten is asked of the accounting once; where there is none it
        is ``UNKNOWN``.

        Raises:
            SlurmError: if the controller does not answer.
        """
        if not ids:
            return {}
        found = self._queue(ids)
        missing = [job for job in ids if not any(_of_job(name, job) for name in found)]
        if missing and self._accounting:
            found |= self._accounted(missing)
        for job in missing:
            if not any(_of_job(name, job) for name in found):
                found[job] = JobState(id=job, state=UNKNOWN)
        return found

    def _queue(self, ids: Sequence[str]) -> dict[str, JobState]:
        words = ["squeue", "-h", "-r", "-t", "all", "-o", _SQUEUE_FORMAT, "-j", ",".join(ids)]
        try:
            text = self._run(words)
        except SlurmError as error:
            if "Invalid job id" not in str(error):
                raise
            return {}
        found = {}
        for line in text.splitlines():
            parts = line.split("|")
            if len(parts) == 4:
                name, state, reason, nodes = parts
                found[name] = JobState(id=name, state=_state(state), reason=reason, nodes=nodes)
        return found

    def _accounted(self, ids: Sequence[str]) -> dict[str, JobState]:
        words = ["sacct", "-X", "-P", "-n", "-j", ",".join(ids)]
        try:
            text = self._run([*words, "-o", "JobID,State,ExitCode,NodeList"])
        except SlurmError:
            # Accounting is off on some sites; asking again would not change that.
            self._accounting = False
            return {}
        found = {}
        for line in text.splitlines():
            parts = line.split("|")
            if len(parts) == 4 and "[" not in parts[0]:
                name, state, code, nodes = parts
                found[name] = JobState(
                    id=name, state=_state(state), exit_code=code, nodes=_nodes(nodes)
                )
        return found

    def nodes(self, host_list: str) -> tuple[str, ...]:
        """Return the names in a host list.

        Raises:
            SlurmError: if scontrol cannot expand it.
        """
        if not host_list:
            return ()
        return tuple(self._run(["scontrol", "show", "hostnames", host_list]).split())

    def output(self, words: Sequence[str]) -> str:
        """Return the output of another command, such as ``sinfo``.

        Raises:
            SlurmError: if it fails.
        """
        return self._run(list(words))

    def _run(self, words: list[str]) -> str:
        self.calls.append(words[0])
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=self._timeout_s, check=False
            )
        except FileNotFoundError:
            raise SlurmError(
                f"{words[0]}: no such command; run this where Slurm's client commands are installed"
            ) from None
        except subprocess.TimeoutExpired:
            raise SlurmError(
                f"{words[0]}: no answer within {self._timeout_s:.0f} s; is the controller up? see "
                "`scontrol ping`"
            ) from None
        if done.returncode != 0:
            raise SlurmError(f"{words[0]}: {_reason(done.stderr or done.stdout)}")
        # `sbatch --test-only` answers on the other stream.
        return done.stdout or done.stderr


def _of_job(name: str, job: str) -> bool:
    return name == job or name.startswith((f"{job}_", f"{job}+"))


def _state(text: str) -> str:
    return text.split()[0].rstrip("+") if text.split() else UNKNOWN


def _nodes(text: str) -> str:
    return "" if text == "None assigned" else text


def _reason(text: str) -> str:
    """Return what a failed command said, on one line and without its own name."""
    lines = [re.sub(r"^\w+: (error: )?", "", line.strip()) for line in text.splitlines()]
    return "; ".join(line for line in lines if line) or "failed without a word"
