"""Rules over a bound on the growth of memory."""

from __future__ import annotations

from collections.abc import Iterator

from harness.scenario.rules.finding import Finding, Rule
from harness.scenario.spec import Scenario

_LEAST = 6
"""Looks at memory below which nothing is said of growth."""


def _growth(scenario: Scenario) -> Iterator[Finding]:
    if scenario.expect.memory_per_microbatch is None:
        return
    path = ("expect", "memory_per_microbatch")
    if scenario.level == "kernel":
        yield Finding(path=path, message="level kernel runs no microbatches; remove it")
        return
    looks = len(scenario.microbatches) * len(scenario.values.seeds)
    if looks < _LEAST:
        yield Finding(
            path=path,
            message=f"growth shows over {_LEAST} microbatches or more, found {looks}; add some, "
            "or remove it",
        )


RULES = (Rule(needs=("level", "microbatches", "values.seeds", "expect"), check=_growth),)
