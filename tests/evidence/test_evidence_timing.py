"""Seconds per phase, with a clock that the test turns."""

import pytest

from harness.evidence.timing import REPEATS, WARM_UPS, timing_evidence
from harness.production.recorder import Recorder
from harness.record.phase import Phase
from harness.reference.site import Site

SITE = Site(global_rank=1, cp_rank=1, microbatch=0, layer=1, seed=0)


class Watch:
    """A clock that only moves when it is told to, and a device that is waited for."""

    def __init__(self):
        self.now, self.waits = 0.0, 0

    def __call__(self):
        return self.now

    def wait(self):
        self.waits += 1


def measured(watch, durations, slow=()):
    recorder, kept = Recorder(), []
    recorder.on_phase = kept.append
    turns = iter(range(100))

    def forward():
        number = next(turns)
        for phase, seconds in durations:
            if phase is not Phase.LAYOUT:
                recorder.on_phase(phase)
            watch.now += seconds * (10 if number in slow else 1)

    found = list(
        timing_evidence(
            forward, recorder, SITE, on="cpu", kernels="torch", synchronize=watch.wait, clock=watch
        )
    )
    assert recorder.on_phase == kept.append
    return {record.phase: record for record in found}


PLAN = [(Phase.LAYOUT, 1.0), (Phase.SCORE, 2.0), (Phase.SELECT, 3.0), (Phase.SCORE, 0.5)]


def test_visits_of_a_phase_are_added_up():
    found = measured(Watch(), PLAN)
    assert {name: record.median_s for name, record in found.items()} == pytest.approx(
        {"layout": 1.0, "score": 2.5, "select": 3.0}
    )
    assert {record.repeats for record in found.values()} == {REPEATS}


def test_warm_ups_are_left_out_and_outliers_only_widen_the_spread():
    found = measured(Watch(), PLAN, slow=range(WARM_UPS))
    assert found["score"].high_s == pytest.approx(2.5)
    spread = measured(Watch(), PLAN, slow=(WARM_UPS, WARM_UPS + 1, WARM_UPS + 2, WARM_UPS + 3))
    assert spread["score"].median_s == pytest.approx(2.5)
    assert spread["score"].high_s == pytest.approx(25.0)


def test_the_device_is_waited_for_at_every_change():
    watch = Watch()
    measured(watch, PLAN)
    assert watch.waits == (WARM_UPS + REPEATS) * (len(PLAN) + 1)
