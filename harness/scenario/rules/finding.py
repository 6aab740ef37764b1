"""What a rule across sections reports, and what a rule is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.scenario.problems import NodePath, Severity
from harness.scenario.spec import MicrobatchSpec, Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One broken rule; the loader turns ``path`` into a line and column."""

    path: NodePath
    message: str
    severity: Severity = Severity.ERROR


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A check over several sections.

    Attributes:
        needs: Dotted paths it reads; it is not run when one of them did not parse.
        check: Yields what is wrong.
        each_microbatch: Whether it looks at microbatches one by one, so that it can run although
            one of them is faulty.
    """

    needs: tuple[str, ...]
    check: Callable[[Scenario], Iterator[Finding]]
    each_microbatch: bool = False


def warn(path: NodePath, message: str) -> Finding:
    """Make a finding that leaves the file usable."""
    return Finding(path=path, message=message, severity=Severity.WARNING)


def effective_cp(scenario: Scenario, microbatch: MicrobatchSpec) -> int:
    """CP size a microbatch runs with: its own under Dynamic CP, else the configured one."""
    return microbatch.cp or scenario.parallel.context_parallel_size
