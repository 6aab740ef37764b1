"""One thing that was looked at."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from harness.record.text import visible
from harness.record.verdict import ExitCode


class Health(enum.StrEnum):
    """How a thing is."""

    GOOD = "good"
    ABSENT = "absent"
    """Not there, and not needed for everything: some scenarios are then ``not_run``."""
    BAD = "bad"
    """Needed, and missing or wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A thing with what was found and what to do.

    Attributes:
        advice: What to change, empty where nothing has to be.
    """

    name: str
    health: Health
    found: str
    advice: str = ""

    @property
    def text(self) -> str:
        """One line."""
        advice = f"; {self.advice}" if self.advice and self.health is not Health.GOOD else ""
        return visible(f"{self.health:<6}  {self.name}: {self.found}{advice}")


def exit_code(checks: Iterable[Check]) -> ExitCode:
    """Return 0 where nothing that is needed is missing, else 1."""
    bad = any(check.health is Health.BAD for check in checks)
    return ExitCode.CHECK_FAILED if bad else ExitCode.OK
