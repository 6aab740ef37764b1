"""A rank's journal: what it is about to do and what it found, one JSON line each.

Each line is one ``os.write`` to a descriptor opened with ``O_APPEND``, so that whatever was written
before a fault, SIGKILL included, is in the file; a line is either whole or the cut last one. Times
are seconds on the host's monotonic clock, which all processes of a host share.

    {"t": 812.31, "e": "open", "global_rank": 1, "pid": 4711, "host": "n1", "wall": "2026-..."}
    {"t": 812.33, "e": "phase", "phase": "score"}
    {"t": 812.90, "e": "evidence", "kind": "selection", "data": {...}}
    {"t": 812.91, "e": "fact", "name": "has_layout_memo", "value": true}
    {"t": 812.92, "e": "collective", "n": 7, ...} (see ``harness.runtime.collective_lines``)
    {"t": 812.95, "e": "end", "status": "ok"}
"""

from __future__ import annotations

import json
import os
import resource
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.record.codec import from_jsonable, to_jsonable
from harness.record.collective import CollectiveCall
from harness.record.evidence import EVIDENCE_KINDS, Evidence, ExceptionEvidence, kind_of
from harness.record.phase import Phase
from harness.record.result import PhaseTiming
from harness.runtime.collective_lines import EVENTS, CallReading
from harness.runtime.storage import StorageError

OK = "ok"
"""Status of a closing line after a scenario that ran to its end."""
EXCEPTION = "exception"
"""Status of a closing line after an exception, whose evidence stands before it."""

_SHOWN = 500


class Journal:
    """Writer of one rank's journal.

    Attributes:
        global_rank: Rank whose journal this is.
        observers: Called with each phase after its line is written (fault injection, limits).
        leaving: Called with the phase about to end before the next one's line is written, so that
            what they find (an asynchronous CUDA error) still belongs to it.
        group: Process group in which an injected ``mismatched_shape`` meets the peers' next
            collective; None is the default group. An engine that builds production groups sets it.
        current: Phase that was entered last.
        entered: Phases that were entered so far.
    """

    def __init__(self, path: str | Path, *, global_rank: int) -> None:
        """Open for appending and write the opening line.

        Raises:
            OSError: if the file cannot be opened or written.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o644)
        self.global_rank = global_rank
        self.observers: list[Callable[[Phase], None]] = []
        self.leaving: list[Callable[[Phase], None]] = []
        self.group: object | None = None
        self.current: Phase | None = None
        self.entered: set[Phase] = set()
        self._write(
            "open",
            global_rank=global_rank,
            pid=os.getpid(),
            host=socket.gethostname(),
            wall=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )

    def _write(self, event: str, /, **fields: Any) -> None:
        self.put(json.dumps({"e": event, **fields})[1:-1])

    def put(self, fields: str) -> None:
        """Write one line whose fields behind the time are JSON text already.

        For what is written many times in a row; everything else goes through ``event``.

        Raises:
            OSError: if the line could not be written as a whole.
        """
        data = f'{{"t": {time.monotonic():.6f}, {fields}}}\n'.encode()
        written = os.write(self._descriptor, data)
        if written != len(data):
            raise StorageError(
                f"journal line cut at {written} of {len(data)} bytes; is the disk full?"
            )

    def phase(self, phase: Phase) -> None:
        """Write that ``phase`` is about to start, then tell the observers."""
        if self.current is not None:
            for look in self.leaving:
                look(self.current)
        self._write("phase", phase=phase.value)
        self.current = phase
        self.entered.add(phase)
        for observer in self.observers:
            observer(phase)

    def evidence(self, record: Evidence) -> None:
        """Write one evidence record.

        Raises:
            TypeError: if the record is none of the evidence kinds.
        """
        self._write("evidence", kind=kind_of(record), data=to_jsonable(record))

    def fact(self, name: str, value: object) -> None:
        """Write one named fact (plain JSON data), such as the provider of an operation."""
        self._write("fact", name=name, value=to_jsonable(value))

    def event(self, kind: str, /, **fields: Any) -> None:
        """Write one line of another kind, with plain JSON fields other than ``t`` and ``e``."""
        self._write(kind, **fields)

    def close(self, status: str = OK) -> None:
        """Write the closing line and close the file."""
        # Linux counts in KiB; a killed rank leaves no closing line and so no figure.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._write("end", status=status, peak_rss_bytes=peak)
        os.close(self._descriptor)
        self._descriptor = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One evidence line with its place in time."""

    time_s: float
    phase: Phase | None
    record: Evidence


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalContent:
    """What a rank's journal holds.

    Attributes:
        phases: Phases in the order entered; ``end_s`` is the start of the next or the closing line.
        entries: Evidence in the order written.
        facts: Facts by name, the last value of each.
        collectives: Collective calls in the order made.
        status: Status of the closing line, None when there is none.
        last_line: Last whole line, verbatim and shortened.
        last_s: Time of the last whole line.
        num_broken: Lines that could not be read: a cut last line, or what a full disk left.
        peak_rss_bytes: Largest resident memory of the process up to its closing line.
    """

    global_rank: int
    pid: int | None = None
    host: str = ""
    phases: tuple[PhaseTiming, ...] = ()
    entries: tuple[Entry, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    collectives: tuple[CollectiveCall, ...] = ()
    status: str | None = None
    last_line: str = ""
    last_s: float | None = None
    num_broken: int = 0
    peak_rss_bytes: int | None = None

    @property
    def completed(self) -> bool:
        """True when the rank wrote the closing line of a scenario that ran to its end."""
        return self.status == OK

    @property
    def last_phase(self) -> Phase | None:
        """Phase entered last."""
        return self.phases[-1].phase if self.phases else None

    def of[T](self, kind: type[T]) -> tuple[T, ...]:
        """Return the evidence records of one class, in order."""
        return tuple(entry.record for entry in self.entries if isinstance(entry.record, kind))

    @property
    def exception(self) -> ExceptionEvidence | None:
        """The exception that ended the rank."""
        found = self.of(ExceptionEvidence)
        return found[-1] if found else None

    @property
    def exception_s(self) -> float | None:
        """When the exception that ended the rank was written."""
        times = [e.time_s for e in self.entries if isinstance(e.record, ExceptionEvidence)]
        return times[-1] if times else None


class _Reading:
    """Journal lines turned into content one by one."""

    def __init__(self, global_rank: int) -> None:
        self.fields: dict[str, Any] = {"global_rank": global_rank}
        self.begins: list[tuple[Phase, float]] = []
        self.entries: list[Entry] = []
        self.facts: dict[str, Any] = {}
        self.calls = CallReading()
        self.end_s: float | None = None

    def take(self, line: bytes) -> None:
        item = json.loads(line)
        time_s = float(item["t"])
        match item["e"]:
            case "open":
                self.fields |= {"pid": item["pid"], "host": item["host"]}
            case "phase":
                self.begins.append((Phase(item["phase"]), time_s))
            case "evidence":
                record: Evidence = from_jsonable(EVIDENCE_KINDS[item["kind"]], item["data"])
                phase = self.begins[-1][0] if self.begins else None
                self.entries.append(Entry(time_s=time_s, phase=phase, record=record))
            case "fact":
                self.facts[item["name"]] = item["value"]
            case event if event in EVENTS:
                self.calls.take(item)
            case "end":
                self.fields["status"] = item["status"]
                self.fields["peak_rss_bytes"] = item.get("peak_rss_bytes")
                self.end_s = time_s
        self.fields["last_s"] = time_s
        self.fields["last_line"] = line[:_SHOWN].decode(errors="replace")

    def phases(self) -> tuple[PhaseTiming, ...]:
        ends = [begin for _, begin in self.begins[1:]] + [self.end_s]
        pairs = zip(self.begins, ends, strict=False)
        return tuple(PhaseTiming(phase=p, begin_s=b, end_s=end) for (p, b), end in pairs)


def read_journal(path: str | Path, *, global_rank: int) -> JournalContent:
    """Read a journal; a missing file reads as an empty one, a cut line is counted and skipped."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except FileNotFoundError:
        return JournalContent(global_rank=global_rank)
    reading = _Reading(global_rank)
    num_broken = 1 if lines[-1] else 0
    for line in lines[:-1]:
        try:
            reading.take(line)
        except (ValueError, KeyError, TypeError):
            num_broken += 1
    return JournalContent(
        **reading.fields,
        phases=reading.phases(),
        entries=tuple(reading.entries),
        facts=reading.facts,
        collectives=reading.calls.calls(),
        num_broken=num_broken,
    )


class PhaseTail:
    """Follows a growing journal for its phase and closing lines alone, cheaply."""

    def __init__(self, path: str | Path) -> None:
        """Follow ``path``, which need not exist yet."""
        self._path = path
        self._offset = 0
        self.begins: list[tuple[Phase, float]] = []
        """Phases entered so far, with the time of entry."""
        self.status: str | None = None
        """Status of the closing line, once it is there."""

    def refresh(self) -> None:
        """Take in what was written since the last look."""
        try:
            with open(self._path, "rb") as stream:
                stream.seek(self._offset)
                data = stream.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            if b'"e": "phase"' in line[:64]:
                item = json.loads(line)
                self.begins.append((Phase(item["phase"]), float(item["t"])))
            elif b'"e": "end"' in line[:64]:
                self.status = json.loads(line)["status"]
