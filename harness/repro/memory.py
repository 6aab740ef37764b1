"""Remembers what candidates of a minimisation showed, also over several starts of it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from harness.record.codec import DecodeError, from_jsonable, to_jsonable
from harness.repro.signature import Signature
from harness.scenario.spec import Scenario


@dataclass(kw_only=True)
class Memory:
    """Runs by what was run; with a file, every run is appended to it at once.

    Attributes:
        file: JSON lines, None to keep nothing.
        replayed: Runs that were recalled instead of made.
    """

    file: Path | None = None
    replayed: int = 0
    _seen: dict[tuple[str, bool], list[Signature]] = field(default_factory=dict)
    _old: dict[tuple[str, bool], int] = field(default_factory=dict)

    @classmethod
    def open(cls, file: Path) -> Memory:
        """Read the runs of an earlier start; a last line that was cut off does not count."""
        memory = cls(file=file)
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        for line in lines:
            try:
                entry = json.loads(line)
                found = from_jsonable(Signature, entry["signature"])
                key = (str(entry["case"]), bool(entry["alone"]))
            except (ValueError, KeyError, TypeError, DecodeError):
                continue
            memory._seen.setdefault(key, []).append(found)
            memory._old[key] = memory._old.get(key, 0) + 1
        return memory

    def recall(self, case: Scenario, number: int, *, alone: bool) -> Signature | None:
        """Return what the run of this number showed, None where there was none."""
        key = (_name(case), alone)
        found = self._seen.get(key, [])
        if number >= len(found):
            return None
        if number < self._old.get(key, 0):
            self.replayed += 1
        return found[number]

    def keep(self, case: Scenario, found: Signature, *, text: str, alone: bool) -> None:
        """Remember one run.

        Raises:
            OSError: if the file cannot be written.
        """
        self._seen.setdefault((_name(case), alone), []).append(found)
        if self.file is None:
            return
        entry = {
            "case": _name(case),
            "alone": alone,
            "text": text,
            "signature": to_jsonable(found),
        }
        line = json.dumps(entry, ensure_ascii=False) + "\n"
        descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


def _name(case: Scenario) -> str:
    """What a case is remembered by: what runs, and what it is judged by."""
    expect = json.dumps(to_jsonable(case.expect), sort_keys=True)
    return f"{case.content_hash}:{expect}"
