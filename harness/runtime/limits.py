"""Every time limit of the runtime, in seconds, in one place.

A scenario's own ``limits.time_s`` covers layout to record. What comes before depends on the machine
(imports, start-up of communicators, kernel compilation) and not on the scenario, so it has
limits of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.record.phase import SCENARIO_PHASES, Phase

PRELOAD_S = 300.0
"""Imports of torch and the production modules, cold, on a slow file system."""
GRACE_S = 0.5
"""What peers get after the first abnormal end, so that their own exceptions reach the journal."""
STACKS_S = 0.3
"""From asking ranks for their stacks to killing them."""
KILL_S = 10.0
"""From SIGKILL to giving a process up as stuck in the kernel."""
POLL_S = 0.1
"""Longest sleep of the supervisor between two looks at journals and clocks."""
HEARTBEAT_S = 60.0
"""Between two lines about a scenario that is still running."""
JOIN_S = 60.0
"""For a worker or a member of a generation to connect to its leader."""
COLLECTIVE_MARGIN_S = 120.0
"""By which a collective's own time-out exceeds all limits together: the supervisor must see a hang
first, while the stacks still show it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseLimits:
    """Limits of one scenario's phases on each rank, in seconds.

    Attributes:
        scenario_s: All phases from layout to record together (``limits.time_s``).
    """

    start_s: float = 180.0
    rendezvous_s: float = 60.0
    build_s: float = 180.0
    compile_s: float = 900.0
    scenario_s: float = 60.0

    def of(self, phase: Phase) -> float:
        """Return the budget that ``phase`` draws on."""
        match phase:
            case Phase.START:
                return self.start_s
            case Phase.RENDEZVOUS:
                return self.rendezvous_s
            case Phase.BUILD:
                return self.build_s
            case Phase.COMPILE:
                return self.compile_s
        assert phase in SCENARIO_PHASES
        return self.scenario_s

    @property
    def collective_s(self) -> float:
        """Time-out of the process group, longer than any wait the supervisor allows."""
        own = self.start_s + self.rendezvous_s + self.build_s + self.compile_s
        return own + self.scenario_s + COLLECTIVE_MARGIN_S
