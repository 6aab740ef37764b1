"""Dumps a rank's stacks shortly before the supervisor's limit, without the supervisor's help."""

from __future__ import annotations

import faulthandler
import time
from typing import TextIO

from harness.record.phase import SCENARIO_PHASES, Phase
from harness.runtime.limits import PhaseLimits

_EARLY = 0.9
"""Fraction of a limit after which the stacks are written."""


class StackTimer:
    """Journal observer that arms faulthandler's watchdog once per budget, not once per phase."""

    def __init__(self, limits: PhaseLimits, stream: TextIO) -> None:
        self._limits = limits
        self._stream = stream
        self._budget: Phase | None = None
        self._entered_s = 0.0
        self._spent_s = 0.0

    def __call__(self, phase: Phase) -> None:
        """Arm for the budget of ``phase`` where it differs from the one that runs."""
        budget = Phase.LAYOUT if phase in SCENARIO_PHASES else phase
        if budget is self._budget:
            return
        now = time.monotonic()
        if self._budget is Phase.LAYOUT:
            self._spent_s += now - self._entered_s
        self._budget, self._entered_s = budget, now
        spent = self._spent_s if budget is Phase.LAYOUT else 0.0
        after = max(0.01, _EARLY * (self._limits.of(phase) - spent))
        faulthandler.dump_traceback_later(after, file=self._stream, exit=False)

    def stop(self) -> None:
        """Disarm."""
        faulthandler.cancel_dump_traceback_later()
