"""Reads the XML that compute-sanitizer saves (``--xml --save``), whatever state it is in.

A rank that dies leaves a cut file, and a run folder may come from anywhere. So the file is read as
a stream: records are kept as they are completed, sizes and counts are bounded, and a document type,
the one place in which XML can define entities, ends the reading. The vendor publishes no schema;
elements that are not known are skipped, and those that are known may be missing.

Names of elements: https://docs.nvidia.com/compute-sanitizer/ComputeSanitizer/index.html
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from harness.record.device_fault import Index, SanitizerFinding

LARGEST_FILE = 64 * 2**20
"""Bytes read of one file."""
MOST_RECORDS = 1000
"""Records kept of one file."""

_ROOT = "ComputeSanitizerOutput"
_CHUNK = 1 << 16
_DEEPEST = 32
_LONGEST_TEXT = 4096
_MOST_FRAMES = 32
_ALLOCATION = re.compile(r"(?:is inside|is [\d,]+ bytes \w+) the nearest allocation[^;\n]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class SanitizerReport:
    """What one file holds.

    Attributes:
        findings: Complete records, in order.
        problem: Why the file may hold more than was read; empty when it was read to its end.
    """

    findings: tuple[SanitizerFinding, ...]
    problem: str = ""


class _StopReadingError(Exception):
    """The rest of the file is not wanted."""


@dataclass(kw_only=True)
class _Records:
    """Handlers of the parser, and the records it has completed."""

    tool: str
    global_rank: int | None
    path: list[str] = field(default_factory=list)
    text: str = ""
    leaves: dict[str, list[str]] = field(default_factory=dict)
    findings: list[SanitizerFinding] = field(default_factory=list)

    def start(self, name: str, attributes: object) -> None:
        if not self.path and name != _ROOT:
            raise _StopReadingError(f"expected a document {_ROOT}, found {name[:80]!r}")
        self.path.append(name)
        self.text = ""
        if len(self.path) > _DEEPEST:
            raise _StopReadingError(f"elements nested deeper than {_DEEPEST}")

    def data(self, text: str) -> None:
        if len(self.text) < _LONGEST_TEXT:
            self.text += text[:_LONGEST_TEXT]

    def end(self, name: str) -> None:
        inside = self.path[2:]
        if inside and self.text.strip():
            values = self.leaves.setdefault(".".join(inside), [])
            if len(values) < _MOST_FRAMES:
                values.append(self.text.strip())
        self.path.pop()
        self.text = ""
        if name == "record" and len(self.path) == 1:
            self.findings.append(_finding(self.leaves, self.tool, self.global_rank))
            self.leaves = {}
            if len(self.findings) == MOST_RECORDS:
                raise _StopReadingError(f"more than {MOST_RECORDS} records")

    def refuse_type(self, *declaration: object) -> None:
        raise _StopReadingError("a document type declaration, which these files never have")


def read_sanitizer_xml(path: Path, *, tool: str, global_rank: int | None = None) -> SanitizerReport:
    """Read one file; what is wrong with it is part of the answer."""
    records = _Records(tool=tool, global_rank=global_rank)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = records.start
    parser.EndElementHandler = records.end
    parser.CharacterDataHandler = records.data
    parser.StartDoctypeDeclHandler = records.refuse_type
    problem = ""
    try:
        with open(path, "rb") as stream:
            for _ in range(LARGEST_FILE // _CHUNK):
                chunk = stream.read(_CHUNK)
                parser.Parse(chunk, not chunk)
                if not chunk:
                    break
            else:
                problem = f"longer than {LARGEST_FILE} bytes"
    except FileNotFoundError:
        problem = "no such file: the tool saw no CUDA call, or never came to write"
    except OSError as error:
        problem = f"cannot be read: {error.strerror or error}"
    except expat.ExpatError as error:
        problem = f"cut or broken at line {error.lineno}: {expat.ErrorString(error.code)}"
    except _StopReadingError as reason:
        problem = str(reason)
    return SanitizerReport(findings=tuple(records.findings), problem=problem)


def _finding(leaves: dict[str, list[str]], tool: str, global_rank: int | None) -> SanitizerFinding:
    said = " ".join(_first(leaves, name) for name in ("what.text", "what.error", "what.message"))
    near = _ALLOCATION.search(said)
    file, line = _first(leaves, "where.path", "path"), _first(leaves, "where.line", "line")
    return SanitizerFinding(
        tool=tool,
        global_rank=global_rank,
        kind=_first(leaves, "kind"),
        level=_first(leaves, "level"),
        text=_first(leaves, "what.text", "what"),
        space=_first(leaves, "what.space").strip("_"),
        direction=_first(leaves, "what.direction", "direction").lower(),
        size=_number(_first(leaves, "what.size", "what.accessSize", "accessSize")),
        address=_first(leaves, "what.address", "what.accessAddress", "what.errorAddress"),
        allocation=near.group().strip() if near else "",
        kernel=_first(leaves, "where.func", "deviceStack.frame.func", "func"),
        source=f"{file}:{line}" if file and line else file,
        thread=_index(leaves, "threadIdx"),
        block=_index(leaves, "blockIdx"),
        stack=tuple(leaves.get("hostStack.frame.func", ())),
    )


def _first(leaves: dict[str, list[str]], *names: str) -> str:
    """Return the first value at one of the paths, else the first at a path that ends so."""
    for name in names:
        if name in leaves:
            return leaves[name][0]
    if len(names) < 2:
        return ""
    ending = f".{names[-1]}"
    # Not the host's stack: a kernel's place is asked for.
    found = (v[0] for k, v in leaves.items() if k.endswith(ending) and not k.startswith("host"))
    return next(found, "")


def _number(text: str) -> int | None:
    try:
        return int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        return None


def _index(leaves: dict[str, list[str]], name: str) -> Index:
    axes = [_number(_first(leaves, f"who.{name}.{axis}", f"{name}.{axis}")) for axis in "xyz"]
    known = [axis for axis in axes if axis is not None]
    return tuple(known) if len(known) == len(axes) else ()
