"""What is wrong with a scenario file, as compilers and linters say it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from harness.record.text import visible

NodePath = tuple[str | int, ...]
"""Place inside a file: mapping keys and list indices from the root. A key is never split."""


class Severity(enum.StrEnum):
    """How much a problem weighs."""

    ERROR = "error"
    """The file cannot be used."""
    WARNING = "warning"
    """The file can be used, but something in it is ignored or looks like a mistake."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """One finding in one file.

    Attributes:
        line: 1-based, 0 when the finding is about the file as a whole (it cannot be read).
        column: 1-based, in characters.
    """

    file: str
    line: int
    column: int
    message: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        """Render as ``file:line:column: message``, which editors and CI turn into a link."""
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        note = "" if self.severity is Severity.ERROR else f"{self.severity}: "
        # What a stranger's file says must not move the cursor or end the line.
        return visible(f"{place}: {note}{self.message}")

    @property
    def github(self) -> str:
        """Render as a GitHub workflow command."""
        properties = f"file={_escape(self.file, property_value=True)}"
        if self.line:
            properties += f",line={self.line},col={self.column}"
        return f"::{self.severity} {properties}::{_escape(self.message)}"


def _escape(text: str, *, property_value: bool = False) -> str:
    # https://docs.github.com/actions/reference/workflow-commands-for-github-actions
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text.replace(":", "%3A").replace(",", "%2C") if property_value else text


def show_path(path: NodePath) -> str:
    """Render a path for people, such as ``microbatches[0].padded[1]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def sort_problems(problems: Iterable[Problem], files: Iterable[str] = ()) -> tuple[Problem, ...]:
    """Order by file, line and column, each finding once.

    Args:
        problems: In any order.
        files: Files in the order they were asked for; others follow as they are first seen.
    """
    unique = list(dict.fromkeys(problems))
    in_order = dict.fromkeys([*files, *(problem.file for problem in unique)])
    place = {file: number for number, file in enumerate(in_order)}
    return tuple(sorted(unique, key=lambda p: (place[p.file], p.line, p.column)))


def has_errors(problems: Iterable[Problem]) -> bool:
    """Tell whether any finding makes a file unusable."""
    return any(problem.severity is Severity.ERROR for problem in problems)
