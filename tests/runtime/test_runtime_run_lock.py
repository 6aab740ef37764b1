"""One process writes a run folder at a time, and a killed one keeps nobody waiting."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest

from harness.runtime import run_lock
from harness.runtime.run_lock import LOCK_FILE, STALE_S, RunLock, RunLockedError, live_holder

HOLD = """
import sys, time
from pathlib import Path
from harness.runtime.run_lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_lock_is_held_until_its_process_ends(tmp_path):
    assert live_holder(tmp_path) is None
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        assert live_holder(tmp_path) == f"process {holder.pid} on {socket.gethostname()}"
        with pytest.raises(RunLockedError, match=f"found that process {holder.pid} on"):
            RunLock(tmp_path)
        holder.kill()
    assert live_holder(tmp_path) is None
    lock = RunLock(tmp_path)
    assert live_holder(tmp_path) == f"process {os.getpid()} on {socket.gethostname()}"
    lock.release()
    assert live_holder(tmp_path) is None


def _as_of(folder, host, age_s):
    path = folder / LOCK_FILE
    path.write_text(json.dumps({"host": host, "pid": 7}))
    then = time.time() - age_s
    os.utime(path, (then, then))


@pytest.mark.parametrize(
    ("host", "age_s", "held"),
    [
        ("elsewhere", 5.0, True),
        ("elsewhere", STALE_S + 60, False),
        (socket.gethostname(), 5.0, False),
    ],
)
def test_locks_do_not_cross_hosts_but_signs_of_life_do(tmp_path, host, age_s, held):
    _as_of(tmp_path, host, age_s)
    assert (live_holder(tmp_path) is not None) is held


def test_without_locks_the_signs_of_life_decide_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "_try_lock", lambda descriptor, shared=False: None)
    _as_of(tmp_path, socket.gethostname(), 5.0)
    assert live_holder(tmp_path).startswith("process 7 on")
    _as_of(tmp_path, socket.gethostname(), STALE_S + 60)
    assert live_holder(tmp_path) is None
