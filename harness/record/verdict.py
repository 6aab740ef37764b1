"""The verdicts of a scenario, their precedence, and what the run's exit code makes of them."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Verdict(enum.StrEnum):
    """What one scenario showed. Declared in order of precedence: the first that applies leads."""

    INFRASTRUCTURE = "infrastructure"
    """Rendezvous, node, network or file system failed; says nothing about a kernel."""
    HARNESS_ERROR = "harness_error"
    """The harness itself failed; says nothing about the build under test."""
    MEMORY_FAULT = "memory_fault"
    """An illegal address: a CUDA error of the 700 family, or a modelled kernel's address fault."""
    CRASH = "crash"
    """A rank died by a signal, by an unexpected exit, or by an exception of the build."""
    HANG = "hang"
    """A rank did not finish its phase in time."""
    OUT_OF_MEMORY = "out_of_memory"
    """Host or device memory ran out."""
    COMPILE_FAILED = "compile_failed"
    """A kernel did not compile; the record names kernel, key and first error."""
    REFUSED = "refused"
    """The build declined the configuration with a message of its own."""
    CAPTURE_FAILED = "capture_failed"
    """CUDA-graph capture did not complete."""
    WRONG_PATH = "wrong_path"
    """Another path ran than the one the scenario is about, or no path could be proved."""
    OUT_OF_BOUNDS = "out_of_bounds"
    """A picked key lies outside the row's segment or past its causal limit."""
    WRONG_SELECTION = "wrong_selection"
    """A picked key is not among the row's best keys, ties understood, or one is missing."""
    WRONG_VALUE = "wrong_value"
    """A forward value differs from the reference beyond its tolerance."""
    WRONG_GRADIENT = "wrong_gradient"
    """A gradient differs from the reference beyond its tolerance."""
    REPLAY_MISMATCH = "replay_mismatch"
    """A graph replay differs from the eager run."""
    NONDETERMINISTIC = "nondeterministic"
    """Equal runs gave different results where equality is promised."""
    WRONG_MEMO = "wrong_memo"
    """Layout tables were rebuilt where they should be reused, or stale ones were served."""
    STATE_LEAK = "state_leak"
    """A microbatch left groups, carriers, configuration or caches changed."""
    PASS = "pass"  # noqa: S105 (a verdict, not a password)
    """Everything asked for was checked and right."""
    NOT_RUN = "not_run"
    """A capability is missing; the record names it."""

    @property
    def rank(self) -> int:
        """Place in the order of precedence, 0 first."""
        return _ORDER[self]


_ORDER = {verdict: place for place, verdict in enumerate(Verdict)}

FAULTS = frozenset(
    {
        Verdict.MEMORY_FAULT,
        Verdict.CRASH,
        Verdict.HANG,
        Verdict.OUT_OF_MEMORY,
        Verdict.COMPILE_FAILED,
        Verdict.INFRASTRUCTURE,
    }
)
"""Verdicts that mean a scenario crashed, hung, faulted or could not start."""


def primary(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the leading verdict.

    Raises:
        ValueError: when there is none; a scenario without evidence never passes by default.
    """
    found = sorted(set(verdicts), key=lambda verdict: verdict.rank)
    if not found:
        raise ValueError("no verdict given; a scenario without evidence has no verdict")
    return found[0]


class Outcome(enum.StrEnum):
    """A verdict against what the scenario expects of this build."""

    EXPECTED = "expected"
    """The verdict is the one under ``expect``."""
    KNOWN = "known"
    """A ``known`` rule matches this build and describes exactly what was seen."""
    UNEXPECTED = "unexpected"
    """Neither expected nor described by a known rule."""
    FIXED = "fixed"
    """A matching ``known`` rule no longer holds: remove the rule."""
    NOT_RUN = "not_run"
    """The scenario could not be judged here."""


class ExitCode(enum.IntEnum):
    """Exit codes of ``dsa-harness`` commands; torchrun itself only ever exits 0 or 1."""

    OK = 0
    CHECK_FAILED = 1
    USAGE = 2
    HARNESS_ERROR = 3
    FAULT = 4
    NOTHING_RAN = 5
    REGRESSION = 6
    INTERRUPTED = 130
    TERMINATED = 143
    CANNOT_BISECT = 125

    @property
    def meaning(self) -> str:
        """One phrase for the last line of a run."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.OK: "all as expected or known",
    ExitCode.CHECK_FAILED: "a check failed, or a known defect is fixed",
    ExitCode.USAGE: "bad usage or scenario file",
    ExitCode.HARNESS_ERROR: "error in the harness itself",
    ExitCode.FAULT: "a scenario crashed, hung, faulted or could not start, unexpectedly",
    ExitCode.NOTHING_RAN: "nothing ran",
    ExitCode.REGRESSION: "regression against the history",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.TERMINATED: "terminated",
    ExitCode.CANNOT_BISECT: "this revision cannot be judged",
}


def exit_code(outcomes: Iterable[tuple[Verdict, Outcome]]) -> ExitCode:
    """Return the run's exit code for the (verdict, outcome) pairs of its scenarios."""
    pairs = list(outcomes)
    if not pairs or all(outcome is Outcome.NOT_RUN for _, outcome in pairs):
        return ExitCode.NOTHING_RAN
    unexpected = {verdict for verdict, outcome in pairs if outcome is Outcome.UNEXPECTED}
    if Verdict.HARNESS_ERROR in unexpected:
        return ExitCode.HARNESS_ERROR
    if unexpected & FAULTS:
        return ExitCode.FAULT
    if unexpected or any(outcome is Outcome.FIXED for _, outcome in pairs):
        return ExitCode.CHECK_FAILED
    return ExitCode.OK


def bisect_code(code: ExitCode) -> ExitCode:
    """Return an exit code for ``git bisect run``: 0 good, 1 bad, 125 for a revision to skip.

    What could not be judged, a fault included, is skipped. To search for a fault itself, expect it
    in the scenario and swap the terms: its verdict is then the good one.
    """
    return code if code in (ExitCode.OK, ExitCode.CHECK_FAILED) else ExitCode.CANNOT_BISECT
