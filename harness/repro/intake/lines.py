"""Text files of any size and origin as a bounded number of clean lines."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from pathlib import Path

HEAD_BYTES = 2 * 2**20
TAIL_BYTES = 6 * 2**20
"""What is read of a file: argument dumps stand at its head, faults at its end."""
MAX_LINE = 4000
MAX_FILES = 200
_BLOCK = 2**20

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,32}[A-Za-z]")
_RANK = re.compile(r"\s{0,8}\[(?:rank|default)(\d{1,6})\]:? ?|\s{0,4}(\d{1,6}): ")
"""Before the lines of torch (``[rank3]:``), torchrun (``[default3]:``) and ``srun -l`` (``3:``)."""

_COMMENT = re.compile(
    r"(?<!\w)\"(?:[^\"\\]|\\.){0,4000}\"|(?<!\w)'[^']{0,4000}'|\\.|(?P<comment>(?<!\S)#(?!\d))"
)
"""Quoted text is passed over; ``#311`` is the number of an issue."""


class IntakeError(ValueError):
    """A file cannot be read; one line says why, and what to change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line.

    Attributes:
        file: As the user gave it.
        number: From 1, of the whole file.
        text: Without colours, rank prefix and line end.
        rank: Rank named by the prefix.
    """

    file: str
    number: int
    text: str
    rank: int | None = None

    @property
    def place(self) -> str:
        """``file:line``."""
        return f"{self.file}:{self.number}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gap:
    """The middle of a huge file, which is not read.

    Attributes:
        num_bytes: How much is left out.
        first: Line that the gap begins in.
        last: Line that it ends in.
    """

    num_bytes: int
    first: int
    last: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """What was read of a file.

    Attributes:
        lines: Those of the head and of the end.
        num_lines: Of the whole file; a line end at its end begins no further line.
        gap: What is left out between head and end, None for a file that is read whole.
    """

    lines: list[Line]
    num_lines: int
    gap: Gap | None = None


def read_text(path: Path) -> Text:
    """Read head and end of a text file; lines between are counted and left out.

    Raises:
        IntakeError: for what is no text file.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise IntakeError(f"{path}: expected a text file, found a folder, pipe or device")
        head, left_out, ends_between, tail = _read(path)
    except OSError as error:
        raise IntakeError(f"{path}: cannot be read: {error.strerror or error}") from error
    if b"\0" in head[:4096]:
        raise IntakeError(f"{path}: expected text, found binary data; unpack or convert it first")
    name, parts = str(path), head.split(b"\n")
    if not left_out:
        lines = _numbered(name, 1, parts)
        return Text(lines=lines, num_lines=len(lines))
    cut = len(parts)
    after = cut + ends_between
    # A line at the gap is not whole: its value may be cut, unless the line is too long anyway.
    if len(parts[-1]) < MAX_LINE:
        parts[-1] = b""
    rest = _numbered(name, after + 1, tail.split(b"\n")[1:])
    return Text(
        lines=_numbered(name, 1, parts) + rest,
        num_lines=after + len(rest),
        gap=Gap(num_bytes=left_out, first=cut, last=after),
    )


def without_comment(text: str) -> str:
    """Return what stands before a comment of a shell, of YAML or Python."""
    if "#" not in text:
        return text
    found = next((one for one in _COMMENT.finditer(text) if one["comment"]), None)
    return text if found is None else text[: found.start()]


def _numbered(name: str, first: int, parts: list[bytes]) -> list[Line]:
    """Return lines; nothing behind the last line end is none."""
    whole = parts if parts[-1:] != [b""] else parts[:-1]
    return [_line(name, number, raw) for number, raw in enumerate(whole, start=first)]


def _read(path: Path) -> tuple[bytes, int, int, bytes]:
    """Return head, number of bytes and of line ends left out after it, and end of a file."""
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
        size = path.stat().st_size
        if size <= HEAD_BYTES + TAIL_BYTES:
            return head + stream.read(TAIL_BYTES), 0, 0, b""
        left_out, ends, left = 0, 0, size - HEAD_BYTES - TAIL_BYTES
        while left > 0:
            block = stream.read(min(_BLOCK, left))
            if not block:
                break
            ends += block.count(b"\n")
            left_out += len(block)
            left -= len(block)
        return head, left_out, ends, stream.read(TAIL_BYTES)


def _line(file: str, number: int, raw: bytes) -> Line:
    text = raw[:MAX_LINE].decode("utf-8", "replace").rstrip("\r")
    text = _ANSI.sub("", text.rpartition("\r")[2] if "\r" in text else text)
    found = _RANK.match(text)
    if found is None:
        return Line(file=file, number=number, text=text)
    rank = int(found[1] or found[2])
    return Line(file=file, number=number, text=text[found.end() :], rank=rank)
