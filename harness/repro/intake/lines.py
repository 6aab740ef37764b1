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


def read_lines(path: Path) -> list[Line]:
    """Read head and end of a text file; lines between are counted and left out.

    Raises:
        IntakeError: for what is no text file.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise IntakeError(f"{path}: expected a text file, found a folder, pipe or device")
        head, skipped, tail = _read(path)
    except OSError as error:
        raise IntakeError(f"{path}: cannot be read: {error.strerror or error}") from error
    if b"\0" in head[:4096]:
        raise IntakeError(f"{path}: expected text, found binary data; unpack or convert it first")
    lines = [_line(str(path), n, raw) for n, raw in enumerate(head.split(b"\n"), start=1)]
    if tail:
        first = head.count(b"\n") + skipped + 1
        # The line at the cut belongs to neither part whole.
        rest = tail.split(b"\n")[1:]
        lines += [_line(str(path), first + n, raw) for n, raw in enumerate(rest, start=1)]
    return lines


def _read(path: Path) -> tuple[bytes, int, bytes]:
    """Return head, number of line ends between, and end of a file."""
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
        size = path.stat().st_size
        if size <= HEAD_BYTES + TAIL_BYTES:
            return head + stream.read(TAIL_BYTES), 0, b""
        skipped, left = 0, size - HEAD_BYTES - TAIL_BYTES
        while left > 0:
            block = stream.read(min(_BLOCK, left))
            if not block:
                break
            skipped += block.count(b"\n")
            left -= len(block)
        return head, skipped, stream.read(TAIL_BYTES)


def _line(file: str, number: int, raw: bytes) -> Line:
    text = raw[:MAX_LINE].decode("utf-8", "replace").rstrip("\r")
    text = _ANSI.sub("", text.rpartition("\r")[2] if "\r" in text else text)
    found = _RANK.match(text)
    if found is None:
        return Line(file=file, number=number, text=text)
    rank = int(found[1] or found[2])
    return Line(file=file, number=number, text=text[found.end() :], rank=rank)
