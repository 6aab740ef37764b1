"""Foreign text as XML may hold it: whatever a log contains, the file stays readable."""

from __future__ import annotations

import re

from harness.record.text import visible
from reports.text import strip_ansi, visible_lines

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Complement of the characters that XML 1.0 allows (section 2.2), surrogates included."""


def xml_line(text: str) -> str:
    r"""Return text as one line for an attribute: no colours, nothing hidden, nothing illegal.

    >>> xml_line("\x1b[31mred\x1b[0m and\x00 more")
    'red and\\x00 more'
    """
    return _legal(visible(strip_ansi(text)))


def xml_lines(text: str, max_lines: int = 200) -> str:
    """Return text of many lines for an element; of a longer one the last lines are kept."""
    lines = visible_lines(strip_ansi(text))
    if len(lines) > max_lines:
        lines = [f"... {len(lines) - max_lines} lines before", *lines[-max_lines:]]
    return _legal("\n".join(lines))


def _legal(text: str) -> str:
    """Replace what is left by its code, as pytest writes it, such as ``#xFFFE``."""
    return _ILLEGAL.sub(lambda match: f"#x{ord(match[0]):04X}", text)
