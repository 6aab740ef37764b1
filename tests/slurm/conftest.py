"""One real Slurm of two nodes for all tests that need one; elsewhere they are skipped by name."""

import shutil
import stat
import tempfile
from pathlib import Path

import pytest
import slurm_starter
from slurm_jobs import Jobs


@pytest.fixture(scope="session")
def sandbox():
    """A running Slurm of two nodes."""
    reason = slurm_starter.missing()
    if reason is not None:
        pytest.skip(reason)
    # Munge's socket needs a path of less than 100 characters, which pytest's folders exceed.
    folder = Path(tempfile.mkdtemp(prefix="dsa-slurm-"))
    try:
        with slurm_starter.running(folder) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def jobs(sandbox, tmp_path):
    """Submissions of one test, to nodes that are all idle."""
    sandbox.wait_idle()
    found = Jobs(sandbox, tmp_path)
    yield found
    sandbox.run(["scancel", "--user=root"])


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Put a shell script in the place of a command; every call is written to ``calls``."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(name, body):
        path = folder / name
        path.write_text(f'#!/bin/bash\necho "$(basename $0) $*" >> {tmp_path}/calls\n{body}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return make
