"""The tables of pull request 6206's suite: a column for each run, from its records alone."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from sample_parts import attempt, result
from sample_records import write_run

from harness.record.deviation import Deviation
from harness.record.transfers import TransferEvidence, TransferSite
from harness.record.verdict import Outcome, Verdict
from harness.scenario.loader import load

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "builds.md").read_text(encoding="utf-8")
READ = TransferSite(
    kind="to_host", operation="aten._to_copy", site="a.py:1", function="f", phase="layout", count=1
)
WRONG = Deviation(verdict=Verdict.WRONG_PATH, kind="plan", text="another plan")


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("suite_table", ROOT / "docs" / "suite_table.py")
    kept, module = list(sys.path), importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = kept


def transfers(*reads: int):
    return tuple(
        TransferEvidence(
            global_rank=0,
            cp_rank=0,
            microbatch=0,
            layer=layer,
            seed=0,
            how="look_alike",
            sites=(READ,) * count,
        )
        for layer, count in enumerate(reads, start=1)
    )


def results(verdict: Verdict, outcome: Outcome, reads: tuple[int, ...]):
    deviations = () if verdict is Verdict.PASS else (WRONG,)
    waited = attempt(Verdict.PASS, transfers=transfers(*reads))
    missing = attempt(Verdict.NOT_RUN, paths=(), missing_capability="usable GPU")
    return [
        result("evidence/plan-x[cp1]", [attempt(verdict, deviations=deviations)], outcome),
        result("evidence/plan-y", [attempt(Verdict.PASS)], Outcome.EXPECTED),
        result("dynamic_cp/model_two-one", [attempt(Verdict.PASS)], Outcome.EXPECTED),
        result("pr6206/first-layer-waits", [waited], Outcome.EXPECTED),
        result("pr6206/host-to-device", [missing], Outcome.NOT_RUN),
    ]


@pytest.fixture
def page(tables, tmp_path):
    bare = results(Verdict.WRONG_PATH, Outcome.KNOWN, (17, 17))
    mended = results(Verdict.PASS, Outcome.EXPECTED, (2, 0))
    command = ("dsa-harness", "run", "suite.yaml")
    overlaid = (*command, "--overlay", "layout_memo", "--overlay", "scoring_plan")
    folders = [
        write_run(tmp_path / "bare", bare, command=command),
        write_run(tmp_path / "mended", mended, command=overlaid),
    ]
    return tables.updated(PAGE, tables.columns_of(map(str, folders)))


def test_each_row_counts_what_became_of_its_scenarios_in_each_run(page):
    assert "| plans | 1 pass, 1 known wrong_path | 2 pass |" in page
    assert "| Dynamic CP at level model | 1 pass | 1 pass |" in page
    assert "| copies to the device | 1 not run (usable GPU) | 1 not run (usable GPU) |" in page


def test_waits_stand_beside_each_other(page):
    assert "| waits in layer 1 | 17 | 2 |" in page
    assert "| waits in layer 2 | 17 | 0 |" in page


def test_a_run_under_overlays_says_how_many(page):
    (header,) = [line for line in page.splitlines() if line.startswith("| row of the suite")]
    assert ", 2 overlays" in header.split("|")[3]
    assert "overlay" not in header.split("|")[2]


def test_every_scenario_of_the_suite_has_a_row(tables):
    suite = load([ROOT / "configs" / "suites" / "pr6206.yaml"]).scenarios
    assert len(suite) > 100
    rows = {tables._row_of(item.scenario.id) for item in suite}
    assert rows == set(tables.ROWS)


def test_runs_of_one_build_make_one_column_and_those_of_two_none(tables, tmp_path):
    first = write_run(tmp_path / "a", results(Verdict.WRONG_PATH, Outcome.KNOWN, (1,)))
    again = write_run(tmp_path / "b", results(Verdict.PASS, Outcome.EXPECTED, (1,)))
    (column,) = tables.columns_of([f"{first},{again}"])
    assert column.results["evidence/plan-x[cp1]"].verdict is Verdict.PASS
    other = write_run(tmp_path / "c", [], command=("run", "--overlay", "layout_memo"))
    with pytest.raises(ValueError, match="expected runs of one build"):
        tables.columns_of([f"{first},{other}"])


def test_a_lost_mark_is_an_error(tables):
    with pytest.raises(ValueError, match="expected the marks"):
        tables.updated(PAGE.replace("<!-- end of waits -->", ""), [])
