"""Sentences on faults: the first one, its victims, exceptions, addresses, what CUDA tools say."""

from __future__ import annotations

from collections.abc import Iterator

from harness.record.device_fault import CoreDump, SanitizerFinding
from harness.record.evidence import AddressFaultEvidence, ExceptionEvidence
from harness.record.result import Attempt, FaultReport, ScenarioResult
from harness.record.verdict import Verdict
from reports.finding import Finding
from reports.text import counted, number_ranges, shorten

_LONGEST = 400
_MOST = 3
"""Findings of the sanitizer, and core dumps, that get a line of their own."""


def fault_findings(attempt: Attempt) -> Iterator[Finding]:
    """Say what went wrong first, who followed, and what raised, dumped or was found on the way."""
    fault = attempt.fault
    if fault is not None:
        yield Finding(label="first fault", text=fault_text(fault))
        if fault.victims:
            yield Finding(label="victims", text=f"global_rank {number_ranges(fault.victims)}")
        if fault.collective is not None and fault.collective.text not in fault.cause:
            yield Finding(label="collective", text=fault.collective.text)
    raised = first_exception(attempt)
    if raised is not None:
        first_line = raised.text.strip().partition("\n")[0]
        if first_line not in (fault.cause if fault is not None else ""):
            yield Finding(label="exception", text=shorten(f"{raised.type}: {first_line}", _LONGEST))
        if raised.cuda_error is not None:
            yield Finding(label="CUDA error", text=str(raised.cuda_error))
        if raised.address_fault is not None:
            yield Finding(label="address", text=address_text(raised.address_fault))
    for found in [item for item in attempt.sanitizer if item.is_fault][:_MOST]:
        yield Finding(label="sanitizer", text=sanitizer_text(found))
    for dump in attempt.core_dumps[:_MOST]:
        yield Finding(label="core dump", text=core_dump_text(dump))


def fault_text(fault: FaultReport) -> str:
    """Say where the first fault was and what caused it; a cause that names the place says it."""
    if fault.global_rank is None:
        phase = "" if fault.phase is None else f" in phase {fault.phase}"
        return f"no rank can be named{phase}: {fault.cause}"
    phase = "" if fault.phase is None else f" in phase {fault.phase}"
    place = f"global_rank {fault.global_rank}{phase}: "
    return place + fault.cause.removeprefix(place.removeprefix("global_"))


def cause_text(fault: FaultReport) -> str:
    """Return the cause without the place that it starts with."""
    return fault_text(fault).partition(": ")[2]


def first_exception(attempt: Attempt) -> ExceptionEvidence | None:
    """Return what the first faulty rank raised; without a fault report, what any rank raised."""
    first = None if attempt.fault is None else attempt.fault.global_rank
    for rank in attempt.ranks:
        if rank.exception is not None and first in (None, rank.global_rank):
            return rank.exception
    return None


def address_text(fault: AddressFaultEvidence) -> str:
    """Say which access of a modelled kernel left which range."""
    low, high = fault.allowed
    return (
        f"{fault.kernel}, operand {fault.operand}, row {fault.row}, index {fault.index}: element "
        f"offset {fault.element_offset} is outside {low} to {high - 1} ({fault.klass})"
    )


def sanitizer_text(found: SanitizerFinding) -> str:
    """Say what compute-sanitizer found, where, and on which rank."""
    who = "" if found.global_rank is None else f"global_rank {found.global_rank}: "
    access = " ".join(part for part in (found.space, found.direction) if part)
    size = "" if found.size is None else f" of {counted(found.size, 'byte')}"
    parts = [f"{found.tool} {found.kind}".strip()]
    parts += [f"{access}{size} at {found.address or 'an unknown address'}"] if access else []
    parts += [f"in {found.kernel}" + (f" ({found.source})" if found.source else "")] * bool(
        found.kernel
    )
    parts += [f"{name} {index}" for name, index in _threads(found.block, found.thread)]
    parts += [text for text in (found.text, found.allocation) if text]
    return shorten(who + ", ".join(parts), _LONGEST)


def core_dump_text(dump: CoreDump) -> str:
    """Say what a CUDA core dump shows: the exception, the function and the place on the device."""
    who = "" if dump.global_rank is None else f"global_rank {dump.global_rank}: "
    parts = [dump.exception or "no exception was read"]
    parts += [f"in {dump.function}"] if dump.function else []
    parts += [f"pc {dump.pc}"] if dump.pc else []
    parts += [f"device {dump.device} SM {dump.sm}"] if dump.device is not None else []
    parts += [f"{name} {index}" for name, index in _threads(dump.block, dump.thread)]
    parts += [dump.problem] if dump.problem else []
    return shorten(f"{who}{', '.join(parts)} ({dump.file})", _LONGEST)


def _threads(block: tuple[int, ...], thread: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    for name, index in (("block", block), ("thread", thread)):
        if index:
            yield name, f"({', '.join(map(str, index))})"


def known_fault_text(result: ScenarioResult) -> str:
    """Say in one line what a known fault did: kernel, operand and row; empty without a fault."""
    attempt = result.last
    if attempt.fault is None:
        return ""
    raised = first_exception(attempt)
    address = None if raised is None else raised.address_fault
    if result.verdict is Verdict.MEMORY_FAULT and address is not None:
        return f"global_rank {attempt.fault.global_rank}: {address_text(address)}"
    return fault_text(attempt.fault)
