"""Scenarios under overlays in this process: the plan matrix, and plans wrong on purpose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from run_alone import one_rank, run_alone

from harness.overlays import plan_resolver, scoring_plan
from harness.record.verdict import Verdict
from harness.scenario.loader import load

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plans")
    with one_rank(folder):
        yield folder


def plan_cells():
    """Scenarios of the plan matrix that one process can run, with cells at level scorer."""
    found = load([str(ROOT / "scenarios" / "evidence")]).scenarios
    scenarios = [item.scenario for item in found if item.scenario.id.startswith("evidence/plan-")]
    cells = [s for s in scenarios if s.level == "scorer"]
    many = next(s for s in scenarios if s.id.startswith("evidence/plan-many["))
    plain = next(s for s in scenarios if s.id.startswith("evidence/plan-unpacked["))
    for base in (many, plain):
        alone = replace(base, level="scorer", training=replace(base.training, backward=False))
        cells.append(replace(alone, id=base.id + "-scorer"))
    return {cell.id: cell for cell in cells}


CELLS = plan_cells()
OVERLAID = [replace(cell, overlays=("scoring_plan",)) for cell in CELLS.values()]


@pytest.mark.parametrize("cell", OVERLAID, ids=CELLS)
def test_cells_of_the_plan_matrix_pass_with_it(world, cell):
    attempt = run_alone(cell, world)
    assert attempt.verdict is Verdict.PASS, attempt.deviations
    assert not attempt.secondary


PLANTED = {
    "cp_size for sequences": (
        "evidence/plan-many[",
        "_why_not_general",
        lambda facts: "one rank" if facts.cp_size == 1 else None,
        Verdict.WRONG_PATH,
    ),
    "one entry for one whole sequence": (
        "evidence/plan-tail",
        "_why_not_single",
        lambda facts: None if facts.entries_q == 1 else "several",
        Verdict.WRONG_PATH,
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_resolver_that_mistakes_one_thing_for_another_is_found(world, monkeypatch, name):
    cell_id, function, fault, verdict = PLANTED[name]
    cell = next(cell for cell in OVERLAID if cell.id.startswith(cell_id))
    monkeypatch.setattr(plan_resolver, function, fault)
    assert run_alone(cell, world).verdict is verdict


def test_a_plan_that_is_not_kept_to_is_a_contradiction(world, monkeypatch):
    cell = next(cell for cell in OVERLAID if cell.id.startswith("evidence/plan-many["))
    unfused = {"packed_cu_seqlens_q": None, "use_local_indexer_varlen": False}
    monkeypatch.setattr(scoring_plan, "_branch", lambda taken, layout: unfused)
    attempt = run_alone(cell, world)
    assert attempt.verdict is Verdict.WRONG_PATH
    assert "contradiction" in {deviation.kind for deviation in attempt.deviations}


def test_a_scorer_that_takes_the_queries_boundaries_for_the_keys_is_found(world, monkeypatch):
    cell = next(cell for cell in OVERLAID if cell.id == "evidence/plan-other-keys")
    monkeypatch.setattr(scoring_plan, "key_bounds", lambda bounds, call, layout: bounds)
    assert run_alone(cell, world).verdict is Verdict.OUT_OF_BOUNDS
