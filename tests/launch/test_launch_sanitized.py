"""dsa-harness run --sanitizer, with a stand-in for compute-sanitizer that writes its XML."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.runtime.sanitizer import find_sanitizer
from reports.store import load_run

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ROOT / "tests" / "runtime"

SCENARIO = """\
id: tiny/{name}
summary: Two ranks.
model: small
level: attention
kernels: {{dsa_kernel_backend: none}}
parallel: {{context_parallel_size: 2}}
microbatches: [{{sequences: [64, 32]}}]
"""

TOOL = '''#!{python}
"""Runs the command behind its options, then writes an error where the rank ran tiny/second."""
import glob, os, subprocess, sys
words = sys.argv[1:]
file = words[words.index("--save") + 1]
command = words[words.index({python!r}):]
status = subprocess.call(command)
with open("calls.txt", "a") as calls:
    calls.write(" ".join(words[:2] + [os.environ["RANK"]]) + chr(10))
record = """<record><kind>Precise</kind><level>Error</level><what><text>Invalid __global__ write
of size 4 bytes</text></what><where><func>indexer_top_k</func></where></record>"""
here = glob.glob("runs/*/ranks/tiny_second*/*/rank0.jsonl")
with open(file, "w") as out:
    out.write("<ComputeSanitizerOutput>" + (record if here else "") + "</ComputeSanitizerOutput>")
sys.exit(99 if here else status)
'''


def _start(folder, *words, tool=True):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "TORCHELASTIC"))}
    env |= {"PYTHONPATH": str(ENGINES), "OMP_NUM_THREADS": "1"}
    if tool:
        fake = folder / "bin" / "compute-sanitizer"
        fake.parent.mkdir()
        fake.write_text(TOOL.format(python=sys.executable))
        fake.chmod(0o755)
        env["PATH"] = f"{fake.parent}{os.pathsep}{env['PATH']}"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom launch.cli import main; main()"
    command = [sys.executable, "-c", code, "run", "--engine", "tiny_engine:execute", *words]
    with open(folder / "out.txt", "w") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=500)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return status, (folder / "out.txt").read_text()


@pytest.fixture
def paths(tmp_path):
    made = []
    for name in ("first", "second"):
        made.append(tmp_path / f"{name}.yaml")
        made[-1].write_text(SCENARIO.format(name=name))
    return [str(path) for path in made]


@pytest.mark.slow
@pytest.mark.ranks
@pytest.mark.timeout(900)
def test_findings_go_to_the_attempt_that_ran_under_the_tool(tmp_path, paths):
    code, output = _start(tmp_path, "--ranks", "2", "--sanitizer", "memcheck@0", *paths)
    assert code == 4, output
    (folder,) = (tmp_path / "runs").iterdir()
    results = {result.id: result for result in load_run(folder).results}
    assert str(results["tiny/first"].verdict) == "pass", output
    assert results["tiny/first"].last.sanitizer == ()
    second = results["tiny/second"]
    assert (str(second.verdict), str(second.outcome)) == ("memory_fault", "unexpected")
    assert second.last.fault.global_rank == 0
    assert second.last.isolation == "none"
    assert [f.kernel for f in second.last.sanitizer] == ["indexer_top_k"]
    assert "--sanitizer memcheck@0" in second.rerun
    kept = [path.name for path in (folder / "ranks").glob("tiny_second*/1/*.xml")]
    assert kept == ["rank0.memcheck.xml"]
    calls = (tmp_path / "calls.txt").read_text().splitlines()
    assert calls == ["--tool memcheck 0"] * 2, "one start for each scenario, rank 1 unwrapped"
    record = json.loads((folder / "run.json").read_text())
    assert (record["exit_code"], record["isolation"]) == (4, "none")
    assert any("compute-sanitizer memcheck on ranks 0" in note for note in record["notes"])
    assert output.splitlines()[-1].startswith("exit code 4")
    assert "memory_fault" in (folder / "report.md").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sanitizer", "memcheck"), "expected compute-sanitizer on the path"),
        (("--sanitizer", "memchek"), "expected one of memcheck, racecheck, initcheck, synccheck"),
        (("--sanitizer", "memcheck@x"), "expected ranks such as memcheck@0,2, found 'x'"),
        (("--sanitizer", "memcheck", "--isolation", "group"), "expected --isolation none"),
        (("--sanitizer", "memcheck", "--jobs", "2"), "expected no --jobs"),
    ],
)
def test_what_cannot_be_done_costs_one_line(tmp_path, paths, words, message, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    if message.startswith("expected compute-sanitizer") and find_sanitizer() is not None:
        pytest.skip("needs an environment without compute-sanitizer")
    code, output = _start(tmp_path, "--ranks", "2", *words, *paths, tool=False)
    assert code == 2
    assert len(output.splitlines()) == 1, output
    assert message in output
    assert not (tmp_path / "runs").exists()
