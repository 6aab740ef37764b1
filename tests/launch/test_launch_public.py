"""The reported cases as shipped: right on releases that are, known on those that are not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.record.verdict import Outcome
from harness.scenario.loader import load
from reports.store import load_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ranks,
    pytest.mark.timeout(1800),
]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scenarios" / "public"


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(ROOT / "launch" / "run.py")]
    command += ["--scenario", str(FOLDER), "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    stored = load_run(next(out.iterdir()))
    assert stored.record is not None and stored.record.exit_code == 0, done.stdout[-4000:]
    return {result.id: result for result in stored.results}


def test_every_case_ran_and_none_came_out_otherwise(results):
    due = {item.scenario.id for item in load([FOLDER]).scenarios}
    assert set(results) == due
    outcomes = {result.outcome for result in results.values()}
    assert outcomes == {Outcome.EXPECTED, Outcome.KNOWN}


def test_a_case_with_rules_has_a_release_that_they_are_about(results):
    families = {scenario_id.partition("[")[0] for scenario_id in results}
    for family in families:
        own = [r for name, r in results.items() if name.partition("[")[0] == family]
        known = [result for result in own if result.outcome is Outcome.KNOWN]
        rules = {str(rule) for result in own for rule in result.scenario["known"]}
        assert bool(known) == bool(rules), family
