"""Holds kernel models against a device, case by case, in processes that may be lost.

A case that faults takes its process with it, and one that hangs is ended at its limit; either is
the kernel's answer to that case, and a new process goes on behind it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.kernels.certify import HANG, ILLEGAL_ADDRESS, KernelCase, Side, judged, kernel_cases
from harness.record.certificate import CertifiedCase
from harness.record.codec import dumps, from_jsonable
from harness.runtime.certify_child import FAULTED
from harness.runtime.certify_request import CertifyRequest, DeviceFacts

ROOT = Path(__file__).resolve().parents[2]
START_S = 300.0
"""For imports, context and the first look at the kernels."""
CASE_S = 120.0
"""For one case, compilation included."""


class CertifyError(RuntimeError):
    """The comparison itself could not go on; the text says why."""


@dataclass(kw_only=True, slots=True)
class Progress:
    """Where a child stands, by its own words."""

    device: DeviceFacts | None = None
    name: str | None = None
    expected: Side | None = None
    fault: str | None = None
    done: bool = False


def certify(
    request: CertifyRequest,
    *,
    on_case: Callable[[CertifiedCase, int, int], None] = lambda case, number, total: None,
    case_s: float = CASE_S,
    start_s: float = START_S,
) -> tuple[tuple[CertifiedCase, ...], DeviceFacts]:
    """Run all cases of a request.

    Args:
        request: Release, architecture, patterns and what stands in.
        on_case: Told of each case with its number and how many there are.
        case_s: Limit of one case in seconds.
        start_s: Limit of a process's start in seconds.

    Raises:
        CertifyError: no case is chosen, or a process ended without a word of a case.
    """
    cases = kernel_cases(request.cudnn_frontend, request.arch, only=request.only)
    if not cases:
        raise CertifyError(f"no case is called like {' '.join(request.only)}")
    found: dict[str, CertifiedCase] = {}
    device: DeviceFacts | None = None

    def take(case: CertifiedCase) -> None:
        found[case.name] = case
        on_case(case, len(found), len(cases))

    while left := [case for case in cases if case.name not in found]:
        names = tuple(case.name for case in left)
        progress = _one_process(replace(request, names=names), take, case_s, start_s)
        device = progress.device or device
        if progress.done:
            break
        take(_lost(left, progress))
    assert device is not None, "a process that took a case has spoken of its device"
    return tuple(found[case.name] for case in cases), device


def _lost(left: list[KernelCase], progress: Progress) -> CertifiedCase:
    """Return the record of the case whose kernel did not come back."""
    case = next((case for case in left if case.name == progress.name), None)
    if case is None or progress.expected is None:
        raise CertifyError(
            f"the process of the cases ended before a kernel ran: {progress.fault or 'no word'}"
        )
    fault = str(progress.fault)
    what = HANG if fault == HANG else ILLEGAL_ADDRESS if _is_address(fault) else "device fault"
    if fault.startswith("signal "):
        what = f"process ended by {fault}"
    return judged(case, progress.expected, Side(what=what, text="" if fault in what else fault))


def _is_address(text: str) -> bool:
    return "illegal memory access" in text or "misaligned address" in text


def _one_process(
    request: CertifyRequest,
    take: Callable[[CertifiedCase], None],
    case_s: float,
    start_s: float,
) -> Progress:
    """Start a process and follow it to its end, or to the limit of a case."""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "harness.runtime.certify_child", str(writer)]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=2,
        pass_fds=(writer,),
        start_new_session=True,
        text=True,
    )
    os.close(writer)
    progress = Progress()
    try:
        assert process.stdin is not None, "a pipe was asked for"
        # A process that ends at once is told by its end, not by its pipe.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(dumps(request))
            process.stdin.close()
        for event in _events(reader, progress, case_s, start_s):
            _note(event, progress, take)
    finally:
        _end(process)
        os.close(reader)
    if not progress.done and progress.fault is None:
        code = process.returncode
        ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        progress.fault = ended if code != FAULTED else "device fault"
    return progress


def _events(
    reader: int, progress: Progress, case_s: float, start_s: float
) -> Iterator[dict[str, Any]]:
    """Yield a child's events until it closes its end, or says nothing within the limit."""
    pending = b""
    deadline = time.monotonic() + start_s
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            progress.fault = HANG
            return
        chunk = os.read(reader, 65536)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)
        deadline = time.monotonic() + case_s


def _note(event: dict[str, Any], progress: Progress, take: Callable[[CertifiedCase], None]) -> None:
    match event["event"]:
        case "ready":
            progress.device = from_jsonable(DeviceFacts, event["device"])
        case "begin":
            progress.name, progress.expected = event["name"], None
        case "expecting":
            progress.expected = Side(what=event["what"], text=event["text"])
        case "fault":
            progress.fault = event["text"]
        case "case":
            take(from_jsonable(CertifiedCase, event["case"]))
            progress.name = None
        case "done":
            progress.done = True


def _end(process: subprocess.Popen[str]) -> None:
    """End what is left of a process and its children."""
    if process.poll() is None and not _ended(process):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ended(process: subprocess.Popen[str]) -> bool:
    """Give a process that closed its end of the pipe a moment to leave by itself."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=2.0)
    return process.poll() is not None
