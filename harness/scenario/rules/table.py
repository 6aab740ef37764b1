"""All rules across sections, in one table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from harness.scenario.problems import NodePath
from harness.scenario.rules import (
    calls,
    compare,
    expectations,
    groups,
    growth,
    handed,
    history,
    ignored,
    kernels,
    lengths,
    recompute,
)
from harness.scenario.rules.finding import Finding, Rule
from harness.scenario.spec import Scenario

RULES: tuple[Rule, ...] = (
    *lengths.RULES,
    *groups.RULES,
    *history.RULES,
    *kernels.RULES,
    *expectations.RULES,
    *compare.RULES,
    *calls.RULES,
    *handed.RULES,
    *recompute.RULES,
    *growth.RULES,
    *ignored.RULES,
)


def check(scenario: Scenario, *, unusable: Iterable[NodePath] = frozenset()) -> Iterator[Finding]:
    """Run all rules that read nothing unusable.

    Args:
        scenario: The resolved scenario; what stands at an unusable path is not looked at.
        unusable: Paths that are missing, did not parse, or were probably meant by a wrong key.
    """
    faulty = set(unusable)
    single = {path for path in faulty if path[0] == "microbatches" and len(path) > 1}
    for rule in RULES:
        blocking = faulty - single if rule.each_microbatch else faulty
        if blocking and _needs_one_of(rule, blocking):
            continue
        for finding in rule.check(scenario):
            if not any(_overlap(finding.path[:2], path[:2]) for path in single):
                yield finding


def _needs_one_of(rule: Rule, paths: Iterable[NodePath]) -> bool:
    needs = [tuple(need.split(".")) for need in rule.needs]
    return any(_overlap(need, path) for need in needs for path in paths)


def _overlap(one: NodePath, two: NodePath) -> bool:
    """Tell whether one path is the other or stands above it."""
    shared = min(len(one), len(two))
    return one[:shared] == two[:shared]
