"""Stacks with native frames of ranks that are stuck, by py-spy where it is installed and may trace.

py-spy (extra ``debug``) is a program of its own that reads another process's memory. It needs the
right to trace: the same user and no Yama restriction, CAP_SYS_PTRACE, or the consent that every
rank gives with ``permit_tracing``. Where it is absent or refused, faulthandler's Python stacks
remain, and a note says why. No torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.record.evidence import NoteEvidence
from harness.runtime.death import die_with_parent

DUMP_S = 15.0
"""How long py-spy gets for all ranks together; native symbols of torch take most of a second."""
TOPIC = "native stacks"
"""Topic of the notes."""

_PR_SET_PTRACER = 0x59616D61
_PR_SET_PTRACER_ANY = ctypes.c_ulong(-1)
_CAP_SYS_PTRACE = 19
_NATIVE_SHOWN = 3
_PYTHON_SHOWN = 5
_LONGEST_NAME = 60
_LARGEST = 16 * 2**20


def permit_tracing() -> None:
    """Let any process of the user trace this one where Yama would allow its ancestors alone.

    Kernels without Yama do not know the request and refuse it; nothing depends on the answer.
    """
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _PR_SET_PTRACER_ANY, 0, 0, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A process whose stacks are wanted.

    Attributes:
        stopped: True for one that a signal stopped: it cannot be stopped again to read native
            frames, but its Python frames can be read as it stands.
        file: Where the dump goes.
    """

    global_rank: int
    pid: int
    file: Path
    stopped: bool = False


def find() -> str | None:
    """Return the program: on the path, or beside this interpreter."""
    return shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))


def dump_command(program: str, target: Target) -> list[str]:
    """Return the command that writes a process's stacks as JSON to standard output."""
    how = "--nonblocking" if target.stopped else "--native"
    return [program, "dump", how, "--json", "--pid", str(target.pid)]


def dump(
    targets: Sequence[Target], folder: Path, *, limit_s: float = DUMP_S
) -> tuple[NoteEvidence, ...]:
    """Dump the stacks of all targets at the same time.

    Args:
        targets: The processes.
        folder: Files are named relative to it in the notes.
        limit_s: When dumps that are not done are given up.

    Returns:
        For each rank where it stood, or why that is not known.
    """
    program = find()
    if program is None:
        text = "py-spy is not installed (extra 'debug'); Python stacks are in the ranks' files"
        return (NoteEvidence(topic=TOPIC, text=text),)
    started = [(target, _start(program, target)) for target in targets]
    limit = time.monotonic() + limit_s
    notes = []
    for target, process in started:
        text = _finish(target, process, limit, folder)
        notes.append(NoteEvidence(topic=TOPIC, text=f"rank {target.global_rank}: {text}"))
    return tuple(notes)


def _start(program: str, target: Target) -> subprocess.Popen[bytes] | str:
    with open(target.file, "wb") as out:
        try:
            return subprocess.Popen(
                dump_command(program, target),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                preexec_fn=die_with_parent,
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"py-spy could not be started: {error}"


def _finish(
    target: Target, process: subprocess.Popen[bytes] | str, limit: float, folder: Path
) -> str:
    """Wait for one dump and say what it holds."""
    if isinstance(process, str):
        target.file.unlink(missing_ok=True)
        return process
    problem = None
    try:
        _, error = process.communicate(timeout=max(0.0, limit - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        problem = "py-spy did not finish in time"
    else:
        if process.returncode != 0:
            problem = _refusal(error.decode(errors="replace"))
    place = innermost(target.file) if problem is None else None
    if place is None:
        target.file.unlink(missing_ok=True)
        return problem or "py-spy wrote no stack that can be read"
    return f"{place}; all threads in {os.path.relpath(target.file, folder)}"


def _refusal(text: str) -> str:
    lines = [line.strip() for line in text.partition("Stack backtrace:")[0].splitlines()]
    reason = " ".join(line for line in lines if line)[:300] or "no reason given"
    if "permission" in reason.lower():
        # The advice to use sudo is of no use to a supervisor.
        reason = f"permission denied; {tracing_rights()}"
    return f"py-spy failed: {reason}"


def tracing_rights(root: Path = Path("/")) -> str:
    """Say what stands between this process and the right to trace others."""
    try:
        status = (root / "proc/self/status").read_text()
        bits = int(status.partition("CapEff:")[2].split()[0], 16)
    except (OSError, IndexError, ValueError):
        bits = 0
    has = "has" if bits >> _CAP_SYS_PTRACE & 1 else "has no"
    try:
        yama = (root / "proc/sys/kernel/yama/ptrace_scope").read_text().strip()
    except OSError:
        yama = "absent"
    return f"the supervisor {has} CAP_SYS_PTRACE, kernel.yama.ptrace_scope is {yama}"


def innermost(file: Path) -> str | None:
    """Return where the main thread of a dump stands, None when it cannot be read.

    A few native frames, without addresses that have no name and what binds them to Python, then
    the innermost Python frames.
    """
    try:
        with open(file, "rb") as stream:
            threads = json.loads(stream.read(_LARGEST))
        main = next((t for t in threads if t["thread_name"] == "MainThread"), threads[0])
        frames = main["frames"]
        inner = itertools.takewhile(lambda frame: frame.get("module"), frames)
        native = [_frame(frame) for frame in inner if not _is_glue(frame)]
        python = [_frame(frame) for frame in frames if not frame.get("module")]
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None
    return " < ".join(native[:_NATIVE_SHOWN] + python[:_PYTHON_SHOWN]) or None


def _is_glue(frame: dict[str, Any]) -> bool:
    return str(frame["name"]).startswith(("0x", "pybind11::", "_Py", "Py"))


def _frame(frame: dict[str, Any]) -> str:
    line = f":{int(frame['line'])}" if frame.get("line") else ""
    file = frame.get("short_filename") or frame.get("filename") or "?"
    return f"{frame['name'][:_LONGEST_NAME]} ({file}{line})"[:200]
