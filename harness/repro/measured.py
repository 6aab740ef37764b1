"""Short runs on this machine that decide what facts only predict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from harness.record.result import ScenarioResult
from harness.record.verdict import Verdict
from harness.repro.affected import HARDWARE, MODEL, Finding, Image, nearest_release
from harness.repro.version_faults import FAULTS, VersionFault
from harness.scenario.loader import load
from harness.scenario.spec import ExpectSpec, ModelledKernels, Scenario

_CP = 2
"""Any size above 1 has zigzag chunks; logical ranks need no processes."""

Evaluate = Callable[[Scenario], ScenarioResult]


def with_measurements(
    found: tuple[Finding, ...], image: Image, evaluate: Evaluate, *, root: Path
) -> tuple[Finding, ...]:
    """Replace predictions by what a run of a few seconds shows, where one can.

    Args:
        found: Predictions, one for each fault of the table.
        image: What is asked about.
        evaluate: Runs a scenario on this machine, with the build that is asked about.
        root: Folder that the scenarios' paths start from.
    """
    faults = {fault.name: fault for fault in FAULTS}
    return tuple(_measured(item, faults[item.name], image, evaluate, root) for item in found)


def _measured(
    item: Finding, fault: VersionFault, image: Image, evaluate: Evaluate, root: Path
) -> Finding:
    if not fault.shown_by:
        return item
    endings: list[str] = []
    shown, real = False, False
    for scenario in short_scenarios(fault, image, root):
        result = evaluate(scenario)
        if result.verdict is Verdict.NOT_RUN:
            missing = result.last.missing_capability
            return replace(item, why=f"{item.why}; not measured, missing {missing}")
        shown = shown or result.verdict in fault.shown_by
        real = real or "hardware" in result.last.proof.kernels.values()
        endings.append(f"{result.verdict} on {scenario.kernels.modelled.arch}")
    if not endings:
        return item
    why = f"{item.why}; a short run ended as {', '.join(endings)}"
    if not shown and item.affected == "yes":
        # The short run takes one of the paths: that it shows nothing there clears no other.
        return replace(item, why=f"{why}, which does not show it")
    return replace(
        item,
        affected="yes" if shown else "no",
        why=why,
        change=fault.change if shown else item.change,
        basis=HARDWARE if real else MODEL,
    )


def short_scenarios(fault: VersionFault, image: Image, root: Path) -> Iterator[Scenario]:
    """The fault's own scenario at level ``scorer`` with the kernels that are asked about."""
    release, _ = nearest_release(image.cudnn_frontend)
    loaded = load([root / fault.scenario]).scenarios
    if release is None or not loaded:
        return
    first = loaded[0].scenario
    for arch in image.arches:
        if arch not in release.forward:
            continue
        modelled = ModelledKernels(cudnn_frontend=release.version, arch=arch)
        yield replace(
            first,
            id=f"affected/{fault.name}-{arch}",
            level="scorer",
            kernels=replace(first.kernels, source="auto", modelled=modelled),
            parallel=replace(first.parallel, context_parallel_size=_CP, cp_ranks="all"),
            expect=ExpectSpec(),
            known=(),
            published=(),
        )
