"""The entry script by itself: mistakes cost a line each and write nothing; waiters keep quiet."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "launch" / "run.py"

GOOD = """\
id: tiny/good
summary: Two ranks.
model: small
level: attention
kernels: {dsa_kernel_backend: none}
parallel: {context_parallel_size: 2}
microbatches: [{sequences: [64, 32]}]
"""


def _environment(rank=0, size=1):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "TORCHELASTIC"))}
    for name in ("RANK", "LOCAL_RANK"):
        env[name] = str(rank)
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        env[name] = str(size)
    env["TORCHELASTIC_RUN_ID"] = f"test-{os.getpid()}-{time.monotonic_ns()}"
    return env


def _run(folder, *words, size=1):
    return subprocess.run(
        [sys.executable, str(RUN), *words],
        cwd=folder,
        env=_environment(size=size),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _broken_checkout(folder):
    (folder / "checkout" / "megatron" / "core").mkdir(parents=True)
    return "checkout"


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        (None, ["missing.yaml"], "missing.yaml: no such file or folder"),
        (GOOD.replace("level:", "levle:"), ["a.yaml"], "a.yaml:4:1: "),
        (GOOD.replace("small", "smal"), ["a.yaml"], "a.yaml:3:8: "),
        (GOOD, ["a.yaml", "--megatron", "checkout"], "checkout: megatron.core there has no dsa.py"),
        (GOOD, ["a.yaml", "--megatron", "nowhere"], "--megatron nowhere: no such folder"),
        (GOOD, ["a.yaml", "--out", "a.yaml/runs"], "a.yaml is a file, expected a folder"),
        (GOOD, ["a.yaml", "--out", "/proc/runs"], "cannot make /proc/runs"),
        (GOOD, ["a.yaml"], "needs 2 ranks"),
        (GOOD, ["a.yaml", "--isolation", "most"], "invalid choice: 'most'"),
        (GOOD, [], "no scenario given"),
    ],
)
def test_a_mistake_costs_one_line_and_writes_nothing(tmp_path, text, words, message):
    _broken_checkout(tmp_path)
    if text is not None:
        (tmp_path / "a.yaml").write_text(text)
    before = sorted(tmp_path.rglob("*"))
    size = 1 if message == "needs 2 ranks" else 2
    done = _run(tmp_path, *words, size=size)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert message in done.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_all_mistakes_are_told_at_once(tmp_path):
    (tmp_path / "a.yaml").write_text(GOOD.replace("level:", "levle:"))
    (tmp_path / "b.yaml").write_text(GOOD.replace("[64, 32]", "[64, -1]"))
    words = ["a.yaml", "b.yaml", "--megatron", "nowhere", "--out", "a.yaml"]
    done = _run(tmp_path, *words)
    assert done.returncode == 2
    places = {line.split(":")[0] for line in done.stderr.splitlines()}
    assert places == {"a.yaml", "b.yaml", "--megatron nowhere", "--out a.yaml"}


def test_nothing_selected_is_exit_code_5(tmp_path):
    (tmp_path / "a.yaml").write_text(GOOD)
    done = _run(tmp_path, "a.yaml", "-k", "other", size=2)
    assert done.returncode == 5
    assert "none of 1 scenarios matches" in done.stderr


def test_a_dry_run_shows_the_plan_and_writes_nothing(tmp_path):
    (tmp_path / "a.yaml").write_text(GOOD)
    done = _run(tmp_path, "--scenario", "a.yaml", "--dry_run", size=2)
    assert done.returncode == 0, done.stderr
    assert "tiny/good  2 ranks on cpu  a.yaml:1" in done.stdout
    assert "--nproc-per-node 2" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["a.yaml"]


def test_a_wrong_launcher_environment_is_said(tmp_path):
    env = _environment()
    del env["WORLD_SIZE"]
    done = subprocess.run(
        [sys.executable, str(RUN)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "WORLD_SIZE is not set although the launcher's other variables are\n"


@pytest.fixture
def waiter():
    """Start a waiting worker and return it with the environment its leader needs."""
    env = _environment(rank=1, size=2)
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", str(RUN), "--scenario", "whatever.yaml"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process, {**env, "RANK": "0", "LOCAL_RANK": "0"}
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()


def test_a_waiter_leaves_quietly_with_its_leader_and_never_imports_torch(tmp_path, waiter):
    process, env = waiter
    assert process.poll() is None
    leader = subprocess.run(
        [sys.executable, str(RUN), "--scenario", "missing.yaml"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert leader.returncode == 2
    out, err = process.communicate(timeout=10)
    assert process.returncode == 0
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert lines == [], "a waiter printed something"
    modules = {line.rpartition("|")[2].strip() for line in err.splitlines()}
    assert "harness.runtime.control" in modules
    heavy = {"torch", "numpy", "megatron", "yaml", "pydantic", "click", "rich"}
    assert not modules & heavy


def test_a_waiter_dies_with_the_process_that_started_it(tmp_path):
    code = (
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, {str(RUN)!r}, '--scenario', 'x'])\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    launcher = subprocess.Popen(
        [sys.executable, "-c", code],
        env=_environment(rank=1, size=2),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    pid = int(launcher.stdout.readline())
    # Until the waiter has asked to die, it would survive; it asks within its first moments.
    deadline = time.monotonic() + 10
    while "control" not in _modules_hint(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    launcher.kill()
    launcher.wait()
    launcher.stdin.close()
    launcher.stdout.close()
    deadline = time.monotonic() + 5
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(pid)


def _alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _modules_hint(pid):
    """A waiter that looks for its leader sleeps in short steps: told by its libraries."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""
    return "control" if "_socket" in maps or "_json" in maps else ""
