"""Seconds in each phase of a forward, measured over several forwards of the same case."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from harness.production.recorder import Recorder
from harness.record.phase import Phase
from harness.record.timing import TimingEvidence
from harness.reference.site import Site

REPEATS = 10
WARM_UPS = 2
"""Forwards that are not measured: caches fill and kernels compile in them."""

Clock = Callable[[], float]


class PhaseClock:
    """Adds up the seconds between the phase changes of one forward.

    The device is waited for at each change, so that a kernel's time falls into the phase that
    launched it. That costs overlap: the sum is an upper bound of the forward's own time.
    """

    def __init__(self, synchronize: Callable[[], None], clock: Clock = time.perf_counter) -> None:
        """Start in phase ``layout``."""
        self._synchronize = synchronize
        self._clock = clock
        self._phase = Phase.LAYOUT
        self.seconds: dict[Phase, float] = {}
        synchronize()
        self._since = clock()

    def enter(self, phase: Phase) -> None:
        """Close the running phase and begin another."""
        self._synchronize()
        now = self._clock()
        self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now


def timing_evidence(
    forward: Callable[[], object],
    recorder: Recorder,
    site: Site,
    *,
    on: str,
    kernels: str,
    synchronize: Callable[[], None] = lambda: None,
    clock: Clock = time.perf_counter,
) -> Iterator[TimingEvidence]:
    """Run a forward repeatedly and yield one record for each phase it came to.

    Args:
        forward: One forward of the case.
        recorder: Tells of phases; what it did before is put back.
        site: Rank, microbatch and seed.
        on: ``cuda`` or ``cpu``.
        kernels: ``hardware``, ``modelled`` or ``torch``.
        synchronize: Waits for the device.
        clock: Seconds; tests hand in their own.
    """
    found: dict[Phase, list[float]] = {}
    before = recorder.on_phase
    try:
        for number in range(WARM_UPS + REPEATS):
            recorder.clear()
            phases = PhaseClock(synchronize, clock)
            recorder.on_phase = phases.enter
            forward()
            phases.enter(Phase.COMPARE)
            if number >= WARM_UPS:
                for phase, seconds in phases.seconds.items():
                    found.setdefault(phase, []).append(seconds)
    finally:
        recorder.on_phase = before
    for phase in sorted(found, key=list(Phase).index):
        low, median, high = statistics.quantiles(found[phase], n=4, method="inclusive")
        yield TimingEvidence(
            global_rank=site.global_rank,
            cp_rank=site.cp_rank,
            microbatch=site.microbatch,
            seed=site.seed,
            phase=str(phase),
            on=on,
            kernels=kernels,
            repeats=len(found[phase]),
            median_s=median,
            low_s=low,
            high_s=high,
        )
