"""Attempts that the run itself took down, which mostly say nothing of the scenario."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from harness.record.result import Attempt, FaultReport, RankOutcome
from harness.record.verdict import Verdict
from harness.runtime.storage import STORAGE_EXIT

_OWN_SIGNALS = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP}
)
"""Signals that a process brings on itself. Any other may be the one that ended the run."""
_SERVER_GONE = 255
"""Exit code that multiprocessing gives a child whose forkserver ended: a signal to all processes of
a job, such as that of ``scancel``, may meet the forkserver first."""
_NOT_ITS_OWN = (0, None, STORAGE_EXIT, _SERVER_GONE)


def has_own_fault(rank: RankOutcome) -> bool:
    """Tell whether a rank failed for a reason that has nothing to do with the end of the run."""
    if rank.exception is not None:
        return not rank.exception.in_collective
    if rank.deadline is not None:
        return True
    if rank.ended_by_harness or rank.node_lost is not None:
        return False
    return rank.signal in _OWN_SIGNALS or rank.exit_code not in _NOT_ITS_OWN


def as_cut_short(attempt: Attempt, ranks: Sequence[RankOutcome], reason: str) -> Attempt:
    """Return a judged attempt as one that the run took down, unless it shows more than that.

    An attempt in which all ranks came to their end, or one of them failed by itself, stays as the
    judge sees it.

    Args:
        attempt: As judged.
        ranks: Its ranks.
        reason: Such as ``the run was killed while it ran``.
    """
    if any(has_own_fault(rank) for rank in ranks) or (ranks and all(r.completed for r in ranks)):
        return attempt
    phases = {rank.last_phase for rank in ranks}
    fault = FaultReport(
        verdict=Verdict.INFRASTRUCTURE,
        global_rank=None,
        phase=phases.pop() if len(phases) == 1 else None,
        cause=reason,
        victims=tuple(rank.global_rank for rank in ranks if not rank.completed),
    )
    return replace(
        attempt,
        verdict=Verdict.INFRASTRUCTURE,
        secondary=(),
        fault=fault,
        missing_capability=None,
        cut_short=reason,
    )
