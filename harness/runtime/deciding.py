"""Which of a scenario's attempts decides: the worst, so that nothing is rerun into green."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.record.result import Attempt
from harness.record.verdict import Outcome, Verdict

_SPOILT = (Verdict.INFRASTRUCTURE, Verdict.HARNESS_ERROR)


def deciding(attempts: Sequence[Attempt], outcome: Callable[[Attempt], Outcome]) -> Attempt:
    """Return the attempt that decides, the latest of several alike.

    First what the build did wrong, unexpected before known or expected, by precedence of verdicts;
    then what the machine or the harness spoilt; then passes. Attempts that the run itself cut short
    say nothing and decide only where there is no other.

    Args:
        attempts: At least one.
        outcome: An attempt against the scenario's expectation.
    """

    def order(attempt: Attempt) -> tuple[int, int]:
        verdict = attempt.verdict
        if attempt.cut_short is not None:
            return 5, verdict.rank
        if verdict is Verdict.NOT_RUN:
            return 4, verdict.rank
        if verdict is Verdict.PASS:
            return 3, verdict.rank
        if verdict in _SPOILT:
            return 2, verdict.rank
        return int(outcome(attempt) is not Outcome.UNEXPECTED), verdict.rank

    return min(reversed(attempts), key=order)
