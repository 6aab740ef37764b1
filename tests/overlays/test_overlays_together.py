"""All overlays: facts, refusals, combination in any order, and what is left when they are off."""

from __future__ import annotations

import itertools
import subprocess
import sys

import overlay_builds
import pytest

from harness.overlays import OVERLAYS, OverlayRefusedError, overlaid
from harness.scenario.facts import FACTS
from harness.scenario.names import CUDNN_OVERLAYS

BUILD_OVERLAYS = tuple(name for name in OVERLAYS if name != "causal_offsets")
BARE = dict.fromkeys(
    (fact for entry in OVERLAYS.values() for fact in entry.overlay.provides), False
)


def test_facts_that_overlays_bring_about_are_facts_that_rules_know():
    assert set(BARE) <= set(FACTS)
    assert set(CUDNN_OVERLAYS) <= set(OVERLAYS)


@pytest.mark.parametrize("name", OVERLAYS)
def test_a_build_that_has_it_already_is_refused_with_one_sentence(name):
    provided = OVERLAYS[name].overlay.provides
    first = next(iter(provided))
    before = overlay_builds.snapshot()
    refused = pytest.raises(OverlayRefusedError, match="remove the overlay")
    with refused as caught, overlaid([name], BARE | {first: True}):
        pass
    assert str(caught.value).startswith(f"overlay {name}: ")
    assert overlay_builds.snapshot() == before


@pytest.mark.parametrize("name", BUILD_OVERLAYS)
def test_a_build_is_what_it_was_when_an_overlay_is_off(name):
    before = overlay_builds.snapshot()
    with overlaid([name], BARE) as provided:
        assert overlay_builds.snapshot() != before
        assert provided == dict(OVERLAYS[name].overlay.provides)
    assert overlay_builds.snapshot() == before


def test_a_failure_within_takes_them_off_as_well():
    before = overlay_builds.snapshot()
    with pytest.raises(KeyError), overlaid(list(OVERLAYS), BARE):
        raise KeyError
    assert overlay_builds.snapshot() == before


@pytest.mark.parametrize("order", list(itertools.permutations(BUILD_OVERLAYS)))
def test_they_combine_in_any_order(order):
    before = overlay_builds.snapshot()
    with overlaid(order, BARE) as provided:
        assert set(provided) == set(BARE) - {"passes_causal_offsets"}
    assert overlay_builds.snapshot() == before


@pytest.mark.parametrize("name", BUILD_OVERLAYS)
def test_the_same_overlay_twice_is_refused_until_it_is_off(name):
    overlay = OVERLAYS[name].overlay
    undo = overlay.install()
    with pytest.raises(OverlayRefusedError, match="on in this process already"):
        overlay.install()
    undo()
    again = overlay.install()
    undo()  # what an earlier installation left behind says nothing about this one
    with pytest.raises(OverlayRefusedError, match="on in this process already"):
        overlay.install()
    again()


def test_a_build_without_the_variant_is_refused_with_one_sentence(monkeypatch):
    overlay_builds.snapshot()
    for name in [name for name in sys.modules if name.startswith(overlay_builds.VARIANT)]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("layout_memo", "scoring_plan", "effective_group"):
        with pytest.raises(OverlayRefusedError, match=rf"^overlay {name}: "):
            OVERLAYS[name].overlay.install()


def test_taking_them_off_in_the_wrong_order_is_refused_and_changes_nothing():
    first = OVERLAYS["layout_memo"].overlay.install()
    second = OVERLAYS["effective_group"].overlay.install()
    within = overlay_builds.snapshot()
    with pytest.raises(OverlayRefusedError, match="reverse order"):
        first()
    assert overlay_builds.snapshot() == within
    second()
    first()


def test_importing_them_brings_neither_megatron_nor_the_control_side():
    unwanted = ("megatron", "pydantic", "yaml", "rich", "click")
    code = (
        f"import sys; from harness.overlays import {', '.join(OVERLAYS)}; "
        f"print([m for m in {unwanted} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
