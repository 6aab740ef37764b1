"""One thing that somebody has to do after a run, and why."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ActionKind(enum.StrEnum):
    """Why somebody has to act; declared most urgent first."""

    RUN = "run not whole"
    """The run itself did not end as it should, or its records are damaged."""
    FAULT = "unexpected fault"
    """A crash, hang, memory fault or failed start, or an error of the harness."""
    WRONG = "unexpected verdict"
    """Another verdict than the expected one."""
    FLIPPED = "flipped verdict"
    """Another verdict than in the run compared with."""
    FIXED = "fixed known defect"
    """A rule describes a defect that is gone."""
    PATH = "changed path"
    """Another scorer or plan ran."""
    MODELLED = "hardware turned modelled"
    """Models ran where hardware could have, or did before."""
    OVERLAP = "lost overlap"
    """Fewer of the keys due were found than before."""
    SLOWER = "slower"
    """It took longer than before."""

    @property
    def place(self) -> int:
        """Place in the order of urgency, 0 first."""
        return _ORDER[self]


_ORDER = {kind: place for place, kind in enumerate(ActionKind)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One thing to do.

    Attributes:
        scenario: Id of the scenario it is about, None for the whole run.
    """

    kind: ActionKind
    text: str
    scenario: str | None = None
