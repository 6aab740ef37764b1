"""The self-test script of a machine that can download nothing."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "launch" / "first_gpu.sh"
PAGE = ROOT / "docs" / "first-gpu.md"


def wheels():
    rows = re.findall(r"^\| `([\w.]+)-([\w.]+)` \| ([\d,]+) \|", PAGE.read_text(), re.MULTILINE)
    return {name: version for name, version, _ in rows}


def test_the_script_is_small_enough_to_paste():
    assert len(SCRIPT.read_text()) <= 2000


def test_the_listed_wheels_are_those_the_project_is_tested_with():
    pinned = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    )
    listed = {name.replace("_", "-"): version for name, version in wheels().items()}
    shared = set(pinned) & set(listed)
    assert {"click", "pydantic", "megatron-core", "nvidia-cudnn-frontend"} <= shared
    assert {name: listed[name] for name in shared} == {name: pinned[name] for name in shared}


def call(tmp_path, **variables):
    environment = {"PATH": os.environ["PATH"], "OUT": str(tmp_path / "out"), **variables}
    return subprocess.run(
        ["bash", str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=120
    )


def test_a_missing_wheel_is_named(tmp_path):
    (tmp_path / "wheels").mkdir()
    done = call(tmp_path, WHEELS=str(tmp_path / "wheels"), PYTHON=_bare_python(tmp_path))
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "missing wheel: click (see docs/first-gpu.md)",
    )


def test_a_broken_wheel_is_named(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    (folder / "x.whl").write_text("no archive")
    done = call(tmp_path, WHEELS=str(folder), PYTHON=_bare_python(tmp_path))
    assert done.returncode == 2
    assert "cannot read" in done.stderr


def _bare_python(tmp_path):
    """A Python that sees no installed packages but those on PYTHONPATH."""
    program = tmp_path / "python"
    program.write_text(f'#!/bin/bash\nexec {shutil.which("python3.12")} -S "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.ranks
def test_a_time_limit_leaves_what_was_found_so_far(tmp_path):
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "marker.whl", "w") as archive:
        archive.writestr("marker.py", "")
    out = tmp_path / "out"
    environment = {**os.environ, "WHEELS": str(folder), "OUT": str(out), "LIMIT_S": "1"}
    environment["PYTHON"] = sys.executable
    done = subprocess.run(
        ["bash", str(SCRIPT)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 124, done.stdout + done.stderr
    assert "stopped after 1 s" in (out / "selftest.txt").read_text()
    assert (out / "doctor.txt").stat().st_size
