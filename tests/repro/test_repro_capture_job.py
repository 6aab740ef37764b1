"""A job of the real GPT model dies of SIGSEGV; its capture gives the history, and reruns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from harness.record.codec import loads
from harness.record.result import ScenarioResult
from harness.record.verdict import Verdict
from harness.repro.capture_lines import read_capture
from harness.repro.signature import Signature
from harness.scenario.loader import load
from launch.cli import cli

ROOT = Path(__file__).resolve().parents[2]
DIE_AT, DIE_RANK = 3, 2

pytestmark = [pytest.mark.ranks]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The capture of a job that was switched on by its environment alone."""
    folder = tmp_path_factory.mktemp("job")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "harness" / "repro" / "job"), str(ROOT)]),
        "DSA_HARNESS_CAPTURE": str(folder / "capture"),
    }
    command = [sys.executable, str(ROOT / "tests" / "repro" / "train_gpt.py")]
    command += ["--die-at", str(DIE_AT), "--die-rank", str(DIE_RANK)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert f"rank {DIE_RANK} ended with -11" in done.stdout, done.stderr[-2000:]
    assert "dsa_capture: " not in done.stderr
    return folder


def test_the_rank_that_died_is_found_with_its_history(job):
    capture = read_capture(job / "capture")
    assert sorted(capture.ranks) == [0, 1, 2, 3]
    dead = capture.ranks[DIE_RANK]
    assert dead.fatal.type == "SIGSEGV"
    assert any(frame.endswith(":fault") for frame in dead.fatal.frames)
    assert list(dead.microbatches) == [0, 1, 2, 3]
    last = dead.microbatches[DIE_AT]
    assert last.entered == [1, 2]
    assert last.left == {1}
    assert last.not_landed == ("scores of layer 2",)
    whole = dead.microbatches[0]
    assert whole.has_backward
    assert not whole.not_landed
    assert {line["layer"] for line in whole.scores} == {1, 2}


def test_its_scenario_has_that_history_and_reruns(job):
    out, sign = job / "case.yaml", job / "signature.json"
    arguments = ["capture", "to-scenario", str(job / "capture"), "--out", str(out)]
    done = CliRunner().invoke(cli, [*arguments, "--signature", str(sign)])
    assert done.exit_code == 0, done.output
    scenario = load([out]).scenarios[0].scenario
    assert [one.sequences for one in scenario.microbatches] == [
        (64, 32),
        (48,),
        (30, 18, 16),
        (96, 8),
    ]
    assert scenario.parallel.context_parallel_size == 4
    assert scenario.training.backward
    assert scenario.training.dsa_indexer_loss_coeff == 0.5
    assert loads(Signature, sign.read_text()) == Signature(
        verdict=Verdict.CRASH, exception="SIGSEGV"
    )
    command = [sys.executable, "-m", "launch.cli", "run", "--ranks", "4"]
    run = subprocess.run(
        [*command, str(out), "--out", str(job / "runs")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    (path,) = (job / "runs").glob("*/results/*.json")
    result = loads(ScenarioResult, path.read_text())
    assert result.last.verdict is Verdict.PASS
