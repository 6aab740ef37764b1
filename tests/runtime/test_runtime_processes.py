"""Ending rank processes: nobody is left, and nobody sees another one die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from harness.runtime.processes import kill_sessions, session_members

WAITS = "import time; time.sleep(60)"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{WAITS}'])"


def started(code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], start_new_session=True)


def test_all_stand_still_before_the_first_one_dies(monkeypatch):
    sent: list[signal.Signals] = []
    for name in ("kill", "killpg"):
        real = getattr(os, name)

        def noted(pid, number, real=real):
            sent.append(number)
            real(pid, number)

        monkeypatch.setattr(f"harness.runtime.processes.os.{name}", noted)
    children = [started(WAITS) for _ in range(3)]
    assert kill_sessions([child.pid for child in children], [], 10.0) == ()
    assert signal.SIGSTOP not in sent[sent.index(signal.SIGKILL) :]
    assert sent[:6] == [signal.SIGSTOP] * 6
    assert {child.wait(10) for child in children} == {-signal.SIGKILL}


def test_what_a_process_started_ends_with_it():
    child = started(PARENT)
    assert kill_sessions([child.pid], [], 10.0) == ()
    child.wait(10)
    assert session_members({child.pid}) == ()
