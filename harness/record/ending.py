"""The exit code that the results of a run call for."""

from __future__ import annotations

from collections.abc import Iterable

from harness.record.result import ScenarioResult
from harness.record.verdict import ExitCode, exit_code

OUT_OF_TIME = "time left in the budget"
"""What a scenario misses that a run had no time for, as it was told to keep to."""

_NO_FAILURE = (ExitCode.OK, ExitCode.NOTHING_RAN)


def results_code(results: Iterable[ScenarioResult]) -> ExitCode:
    """Return the exit code for a run's results.

    What the run left undone because it lost something on the way, such as a node, is no success,
    however good the rest is. What a budget left no time for was asked for, and is told as missing.
    """
    results = list(results)
    code = exit_code((result.verdict, result.outcome) for result in results)
    lost = any(result.last.cut_short is not None and not out_of_time(result) for result in results)
    return ExitCode.FAULT if lost and code in _NO_FAILURE else code


def out_of_time(result: ScenarioResult) -> bool:
    """Tell whether a budget left no time for a scenario."""
    return (result.last.missing_capability or "").startswith(OUT_OF_TIME)
