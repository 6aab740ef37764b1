"""Faulty twins of the catalogue: with the planted fault taken away each fails as ``fixed``.

A rule that went on to match would hide the day on which its scenario notices nothing any more.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import replace

import pytest
from planted_runs import ROOT

from harness.record.verdict import Outcome, Verdict
from harness.runtime.warm import WarmRanks
from harness.scenario.known import EffectiveBuild, matching_rule
from harness.scenario.loader import load
from harness.scenario.spec import Scenario

pytestmark = [pytest.mark.slow, pytest.mark.ranks, pytest.mark.timeout(3600)]

FOLDER = ROOT / "scenarios" / "catalogue"
SAMPLED = 6
"""Twins of the sample: the same ones every time."""


def twins() -> dict[str, list[Scenario]]:
    """Family to its scenarios, of every one that is tagged as a twin."""
    found = load([FOLDER])
    assert found.problems == ()
    families: dict[str, list[Scenario]] = {}
    for item in found.scenarios:
        if "twin" in item.scenario.tags:
            families.setdefault(item.family, []).append(item.scenario)
    return families


def without_fault(scenario: Scenario) -> Scenario:
    """The same scenario with nothing planted, and models without any defect."""
    kernels = scenario.kernels
    if not scenario.inject:
        kernels = replace(kernels, modelled=replace(kernels.modelled, defects="none"))
    return replace(scenario, inject=(), kernels=kernels)


def has_rule(scenario: Scenario) -> bool:
    """Whether a rule of the scenario is about the release that its models follow."""
    modelled = scenario.kernels.modelled
    build = EffectiveBuild(
        versions={"cudnn_frontend": modelled.cudnn_frontend, "megatron_core": "0.19.2"},
        arch=modelled.arch,
        source="modelled" if scenario.kernels.dsa_kernel_backend == "cudnn" else "none",
    )
    return matching_rule(scenario.known, build) is not None


def check(families: dict[str, list[Scenario]], names: Collection[str]) -> None:
    """Run every scenario of some families that a rule is about, without its fault."""
    with WarmRanks(4) as ranks:
        for name in names:
            ruled = [scenario for scenario in families[name] if has_rule(scenario)]
            assert ruled, f"{name}: no rule is about any of its releases"
            for scenario in ruled:
                result = ranks.evaluate(without_fault(scenario))
                assert result.verdict is Verdict.PASS, f"{scenario.id}: {result.explanation}"
                assert result.outcome is Outcome.FIXED, f"{scenario.id}: {result.explanation}"


def test_a_sample_of_twins_without_their_fault():
    families = twins()
    check(families, sorted(families, key=lambda name: zlib.crc32(name.encode()))[:SAMPLED])


def test_every_twin_without_its_fault():
    families = twins()
    assert len(families) >= 30
    check(families, families)


def test_a_twin_with_its_fault_is_known():
    """What the others are held against: the fault itself makes the outcome, not the setting."""
    families = twins()
    scenario = families["catalogue/candidates/plateau-twin"][0]
    with WarmRanks(1) as ranks:
        result = ranks.evaluate(scenario)
    assert (result.outcome, result.verdict) == (Outcome.KNOWN, Verdict.WRONG_SELECTION)
