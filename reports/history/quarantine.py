"""Scenarios that are known to need work: still run, excused until a date, with owner and reason."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from harness.scenario.yaml12 import parse


class QuarantineError(ValueError):
    """A quarantine file cannot be used; one line per problem, each with ``file:line:column``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quarantined:
    """One entry.

    Attributes:
        scenario: Scenario id, or a shell pattern of ids.
        expires: Last day on which the entry excuses anything.
    """

    scenario: str
    owner: str
    link: str
    reason: str
    expires: date

    def covers(self, scenario_id: str) -> bool:
        """Tell whether the entry is about a scenario."""
        # Ids hold brackets, which a shell pattern would read as a set.
        pattern = self.scenario.replace("[", "[[]")
        return fnmatch.fnmatchcase(scenario_id, pattern)

    def expired(self, today: date) -> bool:
        """Tell whether the entry excuses nothing any more."""
        return today > self.expires


_KEYS = ("scenario", "owner", "link", "reason", "expires")


def read_quarantine(path: Path) -> tuple[Quarantined, ...]:
    """Read a quarantine file: a list of entries under ``quarantine``.

    Raises:
        QuarantineError: with one line for each thing that is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise QuarantineError(f"{path}: cannot be read: {error}") from error
    document, problems = parse(text, str(path))
    wrong = [str(problem) for problem in problems]
    data = document.data
    entries = data.get("quarantine") if isinstance(data, dict) else None
    if not wrong and not isinstance(entries, list):
        wrong.append(f"{path}: expected a list under `quarantine`")
    found: list[Quarantined] = []
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        result = _entry(entry)
        if isinstance(result, str):
            mark = document.at_value(("quarantine", number))
            wrong.append(str(document.problem(mark, result)))
        else:
            found.append(result)
    if wrong:
        raise QuarantineError("\n".join(wrong))
    return tuple(found)


def _entry(entry: Any) -> Quarantined | str:
    if not isinstance(entry, dict):
        return f"expected a mapping with {', '.join(_KEYS)}, found {type(entry).__name__}"
    missing = [key for key in _KEYS if not entry.get(key)]
    if missing:
        return f"{', '.join(missing)} missing; an entry has {', '.join(_KEYS)}"
    unknown = [str(key) for key in entry if key not in _KEYS]
    if unknown:
        return f"unknown key {', '.join(unknown)}; an entry has {', '.join(_KEYS)}"
    try:
        expires = date.fromisoformat(str(entry["expires"]))
    except ValueError:
        return f"expires: expected a day such as 2026-12-31, found {entry['expires']!r}"
    texts = {key: str(entry[key]) for key in _KEYS if key != "expires"}
    return Quarantined(**texts, expires=expires)


def covering(entries: Iterable[Quarantined], scenario_id: str) -> Quarantined | None:
    """Return the entry about a scenario, None without one."""
    return next((entry for entry in entries if entry.covers(scenario_id)), None)
