"""``--profile``: who is wrapped, and a run under a stand-in that only keeps its words."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.runtime.child import backend_of
from harness.runtime.options import UsageError, parse_options
from harness.runtime.profiler import (
    ProfilerError,
    Settings,
    main,
    parse_profile,
    rank_words,
    wrapped_words,
)
from harness.runtime.task import Task

ROOT = Path(__file__).resolve().parents[2]
QUICK = ROOT / "scenarios" / "quickstart"
WANTED = "=quickstart/cudnn-multi[cudnn1.25.0-cp2]"


@pytest.mark.parametrize(("text", "ranks"), [("nsys", ()), ("nsys@2,0", (0, 2))])
def test_ranks_are_read(text, ranks):
    assert parse_profile(text) == ranks


@pytest.mark.parametrize("text", ["ncu", "nsys@one", "nsys@"])
def test_what_was_expected_is_said(text):
    with pytest.raises(ProfilerError, match="expected"):
        parse_profile(text)


def test_only_named_ranks_are_wrapped():
    settings = Settings(folder="out", ranks=(1,))
    assert wrapped_words("nsys", settings, 0, ["python", "x"]) == ["python", "x"]
    words = wrapped_words("nsys", settings, 1, ["python", "x"])
    assert words[:2] == ["nsys", "profile"]
    assert words[-2:] == ["python", "x"]
    assert words[words.index("--output") + 1] == "out/rank1"
    assert "--ranks" in rank_words(settings, ["x"])


def test_a_missing_profiler_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    with pytest.raises(ProfilerError, match="nsys was not found"):
        main(["--folder", "x", "--", "true"], {})


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--isolation", "group"], "expected --isolation none"),
        (["--sanitizer", "memcheck"], "expected no --sanitizer"),
    ],
)
def test_what_does_not_go_with_it_is_refused(flags, message):
    with pytest.raises(UsageError, match=message):
        parse_options(["--profile", "nsys", *flags, "s.yaml"], "x")


@pytest.mark.ranks
def test_a_profiled_run_keeps_the_reports_and_says_what_it_is(tmp_path):
    program = tmp_path / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/bash\n"
        'while [ "$1" != "--output" ]; do shift; done\n'
        'mkdir -p "$(dirname "$2")"; echo "$RANK" > "$2.nsys-rep"; shift 2; exec "$@"\n'
    )
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "launch.cli", "run", str(QUICK), "-k", WANTED]
    command += ["--ranks", "2", "--profile", "nsys@1", "--out", str(tmp_path / "runs")]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert [path.name for path in (folder / "profiles").iterdir()] == ["rank1.nsys-rep"]
    record = json.loads((folder / "run.json").read_text())
    assert any("no verdict of this run is evidence" in note for note in record["notes"])
    assert record["isolation"] == "none"


def test_ranks_that_share_a_gpu_meet_over_gloo(make_scenario):
    alone = Task(
        scenario=make_scenario("a"), global_rank=0, local_rank=0, world_size=2, store="", folder="",
        device="cuda",
    )  # fmt: skip
    assert backend_of(alone) == "cpu:gloo,cuda:nccl"
    assert backend_of(dataclasses.replace(alone, ranks_per_gpu=2)) == "cpu:gloo,cuda:gloo"
    assert backend_of(dataclasses.replace(alone, device="cpu", ranks_per_gpu=2)) == "gloo"
