"""Faults of a history, planted in shipped scenarios: each found, with microbatch and rank named.

One torchrun runs every scenario twice, once as it is shipped and once with its fault.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planted_runs import ROOT, Run, run

from harness.record.verdict import Outcome, Verdict
from harness.scenario.loader import load
from harness.scenario.writing import scenario_to_yaml

pytestmark = [pytest.mark.ranks, pytest.mark.timeout(600)]

RANK = 1
FAULTS = {
    # Fault: shipped scenario, phase, verdict.
    "group_kept": ("dynamic_cp/interrupted", "layout", Verdict.STATE_LEAK),
    "static_rotary": ("dynamic_cp/two-one", "layout", Verdict.CRASH),
    "stale_layout": (
        "history/changing-packs[none-cudnn1.32.0-overlays-none]",
        "layout",
        Verdict.OUT_OF_BOUNDS,
    ),
    "later_selection": ("history/recomputed[F0+F1+B0+B1]", "layout", Verdict.WRONG_VALUE),
}
NAMED = {
    "group_kept": f"microbatch 1 on rank {RANK}: behind forward",
    "static_rotary": f"microbatch 1 on rank {RANK}: the rotary embedding went by a group of 2",
    "stale_layout": "microbatch 1: layer 1 was served the tables of an earlier microbatch",
    "later_selection": f"microbatch 0 on cp_rank {RANK}, computed again in a step of several: "
    "attends with other keys",
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("scenarios")
    paths, arguments = [], []
    for kind, (shipped, phase, _verdict) in FAULTS.items():
        file = ROOT / "scenarios" / f"{shipped.partition('[')[0]}.yaml"
        members = {member.scenario.id: member.scenario for member in load([file]).scenarios}
        for name in ("healthy", "planted"):
            paths.append(folder / f"{name}-{kind}.yaml")
            renamed = replace(members[shipped], id=f"{name}/{kind}")
            Path(paths[-1]).write_text(scenario_to_yaml(renamed))
        arguments += ["--inject", f"{kind}@{RANK}:{phase}@planted/{kind}"]
    out = tmp_path_factory.mktemp("runs")
    return run(4, paths, out, *arguments, timeout_s=540)


@pytest.mark.parametrize("kind", FAULTS)
def test_as_shipped_it_passes(planted, kind):
    result = planted.results[f"healthy/{kind}"]
    assert result.outcome is Outcome.EXPECTED, result.explanation
    assert result.last.deviations == ()
    assert result.last.groups


@pytest.mark.parametrize("kind", FAULTS)
def test_the_fault_is_found_with_microbatch_and_rank(planted, kind):
    result = planted.results[f"planted/{kind}"]
    assert result.verdict is FAULTS[kind][2], result.explanation
    said = [d.text for d in result.last.deviations if d.global_rank == RANK]
    assert any(NAMED[kind] in text for text in said), said


def test_other_ranks_are_not_accused_of_a_group_they_gave_back(planted):
    deviations = planted.results["planted/group_kept"].last.deviations
    assert {d.global_rank for d in deviations if d.kind == "group_left"} == {RANK}
