"""What makes two faults the same fault: the verdict and the typed facts that name its cause."""

from __future__ import annotations

import signal
from dataclasses import dataclass, fields

from harness.record.result import Attempt, RankOutcome, ScenarioResult
from harness.record.verdict import FAULTS, Verdict
from harness.scenario.known import Observed, observe

UNEXPLAINED = "unexplained"
"""Behaviour of wrong picks that no known behaviour predicts."""

_OF_PICKS = (Verdict.WRONG_SELECTION, Verdict.OUT_OF_BOUNDS)
_OF_VALUES = (Verdict.WRONG_VALUE, Verdict.WRONG_GRADIENT)
_OF_PATH = (Verdict.WRONG_PATH, Verdict.WRONG_MEMO, Verdict.STATE_LEAK)


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """A fault without its place and size, so that a smaller case can have the same one.

    A field that is None does not count, as where it has no meaning for the verdict, or where
    somebody who wrote the signature by hand did not know.

    Attributes:
        verdict: Leading verdict.
        kernel: Kernel of the address fault.
        phase: Phase of the first fault.
        exception: Class of the exception that ended the first faulty rank, or how it ended without
            one, such as ``SIGSEGV`` or ``exit code 3``.
        address_class: Class of the address fault, such as ``past_tensor``.
        behaviour: Faulty behaviour that the wrong picks follow, or ``unexplained``.
        details: Values beyond tolerance, tables that differ, or kinds of deviation; of two equal
            faults these have one in common.
    """

    verdict: Verdict
    kernel: str | None = None
    phase: str | None = None
    exception: str | None = None
    address_class: str | None = None
    behaviour: str | None = None
    details: tuple[str, ...] = ()

    def matches(self, other: Signature) -> bool:
        """Tell whether another fault is this one; what this one leaves open, the other may have."""
        if self.details and not set(self.details) & set(other.details):
            return False
        return all(
            wanted is None or wanted == getattr(other, item.name)
            for item in fields(self)
            if item.name != "details"
            for wanted in [getattr(self, item.name)]
        )

    def __str__(self) -> str:
        """The facts in one line, for people."""
        parts = [
            *([f"as {self.behaviour}"] if self.behaviour else []),
            *([f"in {self.kernel}"] if self.kernel else []),
            *([f"phase {self.phase}"] if self.phase else []),
            *([self.address_class] if self.address_class else []),
            *([self.exception] if self.exception and not self.address_class else []),
            *self.details[:3],
        ]
        return f"{self.verdict}" + (f" ({', '.join(parts)})" if parts else "")


def signature_of(result: ScenarioResult) -> Signature:
    """Return the signature of a result's deciding attempt."""
    return attempt_signature(result.last)


def attempt_signature(attempt: Attempt) -> Signature:
    """Return the signature of one attempt."""
    seen = observe(attempt)
    verdict = attempt.verdict
    first = _first_rank(attempt)
    address = None if first is None or first.exception is None else first.exception.address_fault
    return Signature(
        verdict=verdict,
        kernel=seen.kernel if address is not None else None,
        phase=seen.phase,
        exception=None if attempt.fault is None else _end(first),
        address_class=None if address is None else address.klass,
        behaviour=_behaviour(seen) if verdict in _OF_PICKS else None,
        details=_details(seen),
    )


def _first_rank(attempt: Attempt) -> RankOutcome | None:
    """The rank that the fault report names; where it names none, the first that raised."""
    named = None if attempt.fault is None else attempt.fault.global_rank
    if named is not None:
        return next((rank for rank in attempt.ranks if rank.global_rank == named), None)
    return next((rank for rank in attempt.ranks if rank.exception is not None), None)


def _end(rank: RankOutcome | None) -> str | None:
    if rank is None:
        return None
    if rank.exception is not None:
        return rank.exception.type
    if rank.ended_by_harness or rank.deadline is not None:
        return None
    if rank.signal is not None:
        return signal.Signals(rank.signal).name
    return None if rank.exit_code is None else f"exit code {rank.exit_code}"


def _behaviour(seen: Observed) -> str:
    return "+".join(sorted(seen.behaviours)) or UNEXPLAINED


def _details(seen: Observed) -> tuple[str, ...]:
    if seen.verdict in FAULTS:
        return ()
    found: set[str] = set()
    if seen.verdict in _OF_VALUES:
        found |= seen.wrong_values | {f"table {name}" for name in seen.wrong_tables}
    if seen.verdict in _OF_PATH:
        found |= {str(kind) for kind in seen.deviations}
    return tuple(sorted(found))
