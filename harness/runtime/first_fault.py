"""Which rank failed first, of what, and who merely followed: typed facts in, a fault report out."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Sequence

from harness.record.collective import CollectiveFinding, CollectiveKind
from harness.record.evidence import ExceptionEvidence
from harness.record.phase import SCENARIO_PHASES, Phase
from harness.record.result import FaultReport, RankOutcome
from harness.record.verdict import Verdict
from harness.runtime.cuda_errors import HARDWARE_ERRORS, MEMORY_ERRORS, STICKY_ERRORS


def first_fault(
    ranks: Sequence[RankOutcome], collective: CollectiveFinding | None = None
) -> FaultReport | None:
    """Return the first fault among the ranks, None when every rank completed.

    On one host the earliest cause wins. Across hosts clocks do not compare, so the class of cause
    decides: address fault, exception, signal or early exit, deadline, lost node, and last the echo
    of another rank's end inside a collective.

    Args:
        ranks: How each rank ended.
        collective: Where the ranks part company over their collectives. Where it names one rank,
            those without a cause of their own (a deadline, an echo, an end inside the call that
            differs) only followed it.
    """
    faulty = [rank for rank in ranks if _cause(rank) is not None]
    if not faulty:
        return None
    one_host = len({rank.host for rank in ranks}) <= 1
    first = min(faulty, key=lambda rank: _order(rank, one_host))
    verdict, sentence = _describe(first)
    if _cause(first) == "node":
        collective = None  # ranks that vanished part company with everybody
    if collective is not None:
        named = _named(first, ranks, collective)
        if named is first:
            sentence = f"{sentence}; {collective.text}"
        else:
            sentence = f"{_place(named)}: {collective.text}; {sentence}"
        first = named
    victims = tuple(r.global_rank for r in faulty if r.global_rank != first.global_rank)
    return FaultReport(
        verdict=verdict,
        global_rank=first.global_rank,
        phase=first.deadline or first.last_phase,
        cause=sentence,
        victims=victims,
        collective=collective,
    )


def _named(
    first: RankOutcome, ranks: Sequence[RankOutcome], collective: CollectiveFinding
) -> RankOutcome:
    """Return the rank that the collectives name, where the first one has no cause of its own."""
    inside = collective.kind is CollectiveKind.MISMATCH and first.global_rank in collective.waiting
    if len(collective.ranks) == 1 and (inside or _cause(first) in _FOLLOWERS):
        return next((r for r in ranks if r.global_rank == collective.ranks[0]), first)
    return first


def _cause(rank: RankOutcome) -> str | None:
    """Class of a rank's cause, None for a rank that completed."""
    if rank.exception is not None:
        if rank.exception.address_fault is not None or _is_cuda_memory_error(rank):
            return "address"
        return "echo" if rank.exception.in_collective else "exception"
    if rank.node_lost is not None:
        return "node"
    if rank.process_state in ("T", "t"):
        return "stopped"
    if rank.ended_by_harness:
        return "deadline" if rank.deadline is not None else "victim"
    if rank.signal is not None:
        return "signal"
    if not rank.completed or rank.exit_code not in (0, None):
        return "exit"
    return None


_CLASS_ORDER = (
    "address",
    "exception",
    "signal",
    "exit",
    "stopped",
    "deadline",
    "node",
    "echo",
    "victim",
)


_FOLLOWERS = ("deadline", "echo", "victim")
"""Causes that may be the consequence of what another rank did or left undone."""


def _order(rank: RankOutcome, one_host: bool) -> tuple[int, float, int, int]:
    cause = _cause(rank)
    assert cause is not None
    place = _CLASS_ORDER.index(cause)
    # A deadline, an echo or a kill by the supervisor is never earlier than its cause, whatever
    # the clock says: those stay behind on one host too.
    group = 0 if place < _CLASS_ORDER.index("stopped") else 2 * place
    moment = rank.ended_s if one_host and rank.ended_s is not None else 0.0
    if cause == "deadline":
        # A rank inside a collective waits for somebody; of the others, the one furthest behind.
        group += int(bool(rank.waiting_in_collective))
        moment = float(len(rank.phases))
    return group, moment, place, rank.global_rank


def _is_cuda_memory_error(rank: RankOutcome) -> bool:
    exception = rank.exception
    return exception is not None and exception.cuda_error in MEMORY_ERRORS


_SAY_NOTHING_YET = (Verdict.CRASH, Verdict.HANG, Verdict.HARNESS_ERROR)
"""In ``rendezvous``, where neither build nor scenario took part, these are the infrastructure's."""


def _describe(rank: RankOutcome) -> tuple[Verdict, str]:
    phase = rank.deadline or rank.last_phase
    verdict, text = _verdict(rank)
    if phase is Phase.RENDEZVOUS and verdict in _SAY_NOTHING_YET:
        verdict = Verdict.INFRASTRUCTURE
    return verdict, f"{_place(rank)}: {text}"


def _place(rank: RankOutcome) -> str:
    return f"rank {rank.global_rank} in phase {rank.deadline or rank.last_phase or 'start'}"


def _verdict(rank: RankOutcome) -> tuple[Verdict, str]:
    if rank.exception is not None:
        return _exception_verdict(rank)
    if rank.node_lost is not None:
        return Verdict.INFRASTRUCTURE, rank.node_lost
    if rank.process_state in ("T", "t"):
        return Verdict.HANG, f"process was stopped (state {rank.process_state})"
    if rank.deadline is not None:
        return (
            Verdict.HANG,
            f"did not finish within the limit of phase {rank.deadline}{_remedy(rank)}",
        )
    if rank.signal == signals.SIGKILL and rank.oom_kills:
        return Verdict.OUT_OF_MEMORY, "ended by the kernel's out-of-memory killer (SIGKILL)"
    if rank.signal is not None:
        return Verdict.CRASH, f"ended by signal {_signal_name(rank.signal)}"
    return Verdict.CRASH, f"exited with status {rank.exit_code} before its closing journal line"


def _remedy(rank: RankOutcome) -> str:
    """What a user can set where a rank may only have been slow."""
    in_scenario = rank.deadline in SCENARIO_PHASES
    return " (raise limits.time_s of the scenario if it is only slow)" if in_scenario else ""


def _exception_verdict(rank: RankOutcome) -> tuple[Verdict, str]:
    exception = rank.exception
    assert exception is not None
    first_line = exception.text.strip().partition("\n")[0] or _raised_at(exception)
    text = f"{exception.type}: {first_line}"
    if exception.address_fault is not None or _is_cuda_memory_error(rank):
        return Verdict.MEMORY_FAULT, text
    if exception.out_of_memory:
        return Verdict.OUT_OF_MEMORY, text
    if exception.cuda_error in HARDWARE_ERRORS:
        return Verdict.INFRASTRUCTURE, text
    if exception.origin == "harness" and exception.cuda_error not in STICKY_ERRORS:
        return Verdict.HARNESS_ERROR, text
    if exception.compile_failure:
        return Verdict.COMPILE_FAILED, text
    if exception.kernel_hang:
        return Verdict.HANG, text
    if exception.declined and exception.origin == "build":
        return Verdict.REFUSED, text
    return Verdict.CRASH, text


_FRAME = re.compile(r'  File "([^"]+)", line (\d+), in (\S+)\n(?:    (\S[^\n]*))?')


def _raised_at(exception: ExceptionEvidence) -> str:
    """Say where an exception without words was raised, such as a bare ``assert``."""
    frames = _FRAME.findall(exception.traceback)
    if not frames:
        return "raised without words"
    file, line, function, source = frames[-1]
    words = f": {source}" if source else ""
    return f"raised without words in {function} ({file.rpartition('/')[2]}:{line}){words}"


def _signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return str(number)
