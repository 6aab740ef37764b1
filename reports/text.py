"""Foreign text made harmless, and the few number formats that all documents share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from harness.record.text import escape_hidden, visible

_ANSI = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[PX^_][^\x1b]*\x1b\\"
    r"|\x1b[@-Z\\-_]"
)
"""Escape sequences of terminals (ECMA-48): control sequences, titles and links, strings, others."""


def strip_ansi(text: str) -> str:
    r"""Return text without colours, titles and cursor movements of a terminal.

    >>> strip_ansi("\x1b[1;31mred\x1b[0m \x1b]0;title\x07plain")
    'red plain'
    """
    return _ANSI.sub("", text)


def visible_lines(text: str) -> list[str]:
    """Return the lines of a text, each as ``visible`` makes it but with its indentation kept."""
    lines = text.replace("\r\n", "\n").expandtabs(4).split("\n")
    return [escape_hidden(line).rstrip() for line in lines]


def shorten(text: str, limit: int = 200) -> str:
    """Return one visible line of at most ``limit`` characters; a cut is marked with dots."""
    line = visible(text)
    return line if len(line) <= limit else line[: limit - 4].rstrip() + " ..."


def last_line(text: str) -> str:
    r"""Return the last line that is not blank: in a traceback, what was raised.

    >>> last_line("Traceback ...\nOSError: no space\n")
    'OSError: no space'
    """
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def ratio(value: float) -> str:
    """Return a ratio with four decimals; 1.0000 and 0.0000 are shown only where they are exact.

    >>> ratio(1.0), ratio(0.99999), ratio(0.00001)
    ('1.0000', '0.9999', '0.0001')
    """
    if 0.0 < value < 1.0:
        value = min(max(value, 0.0001), 0.9999)
    return f"{value:.4f}"


def seconds(value: float) -> str:
    """Return a duration with its unit.

    >>> seconds(1.234)
    '1.2 s'
    """
    return f"{value:.1f} s"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in the right form.

    >>> counted(1, "rank"), counted(4, "rank")
    ('1 rank', '4 ranks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def number_ranges(numbers: Iterable[int]) -> str:
    """Return numbers with runs drawn together.

    >>> number_ranges([0, 1, 2, 5])
    '0..2, 5'
    """
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(_range(part) for part in parts)


def _range(part: Sequence[int]) -> str:
    if len(part) > 2:
        return f"{part[0]}..{part[-1]}"
    return ", ".join(str(number) for number in part)
