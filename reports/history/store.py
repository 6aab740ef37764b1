"""The append-only store: one file of JSON lines for each night, under a name of its own.

A night is written to a temporary name and renamed, and no file is ever touched again. So two
writers on a shared file system need no lock, which some of them do not honour, and lose nothing.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.record.codec import from_jsonable, to_jsonable
from harness.record.files import safe_name, write_text
from reports.history.night import SCHEMA_VERSION, Entry, Night

NIGHTS = "nights"
"""Folder of the files inside a store."""


class StoreError(ValueError):
    """A store cannot be used; the message says what to change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NightFile:
    """A night as it was read.

    Attributes:
        night: The night without its entries, None where not even its first line can be read.
        lines: One JSON line for each entry, in ``items`` as plain data.
        warnings: One sentence for each thing that was wrong with the file.
    """

    path: Path
    night: Night | None
    lines: tuple[str, ...] = ()
    items: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def whole(self) -> Night | None:
        """The night with its entries."""
        if self.night is None:
            return None
        entries = tuple(from_jsonable(Entry, item) for item in self.items)
        return replace(self.night, entries=entries)


def append(store: Path, night: Night) -> Path:
    """Add a night and return its file.

    Raises:
        StoreError: if the store cannot be written to; nothing is left behind then.
    """
    token = os.urandom(4).hex()
    stamp = re.sub(r"[^0-9TZ]", "", night.started_at)[:15] or "undated"
    year = stamp[:4] if stamp[:4].isdigit() else "undated"
    path = store / NIGHTS / year / f"{stamp}-{safe_name(night.name)}-{token}.jsonl"
    head = to_jsonable(replace(night, entries=()))
    lines = [head, *(to_jsonable(entry) for entry in night.entries), {"end": len(night.entries)}]
    try:
        write_text(path, "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines))
    except OSError as error:
        raise StoreError(
            f"{store}: cannot be written to ({error.strerror}); give --store a folder that can"
        ) from error
    return path


def night_files(store: Path) -> list[Path]:
    """Return the files of a store in order of time.

    Raises:
        StoreError: if the store is a file.
    """
    if store.exists() and not store.is_dir():
        raise StoreError(f"{store}: expected a folder of nights, found a file")
    found = [path for path in store.glob(f"{NIGHTS}/*/*.jsonl") if not path.name.startswith(".")]
    return sorted(found, key=lambda path: path.name)


def read_night(path: Path) -> NightFile:
    """Read one file up to where it can be read."""
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        return NightFile(path=path, night=None, warnings=(f"{path}: {error.strerror}",))
    lines = text.split("\n")
    head = _head(lines[0])
    if isinstance(head, str):
        return NightFile(path=path, night=None, warnings=(f"{path}:1: {head}",))
    items: list[dict[str, Any]] = []
    for line in lines[1:]:
        item = _item(line)
        if item is None:
            break
        if "end" in item:
            return NightFile(
                path=path, night=head, lines=tuple(lines[1 : 1 + len(items)]), items=tuple(items)
            )
        items.append(item)
    warning = (
        f"{path}:{len(items) + 2}: the file is cut here; {len(items)} of its scenarios were read, "
        "and the night counts as partial"
    )
    return NightFile(
        path=path,
        night=replace(head, partial=(*head.partial, "the file is cut")),
        lines=tuple(lines[1 : 1 + len(items)]),
        items=tuple(items),
        warnings=(warning,),
    )


def _item(line: str) -> dict[str, Any] | None:
    """Return an entry as plain data, None for a line that is cut or is none.

    Only what the index needs is looked at: a year of nights is read at once.
    """
    try:
        item = json.loads(line)
    except ValueError:
        return None
    if not isinstance(item, dict):
        return None
    metrics = item.get("metrics", {})
    fine = isinstance(metrics, dict) and all(
        isinstance(value, int | float) and math.isfinite(value) for value in metrics.values()
    )
    return item if "end" in item or (isinstance(item.get("id"), str) and fine) else None


def _head(line: str) -> Night | str:
    try:
        item = json.loads(line)
        version = item.get("schema_version")
        if version != SCHEMA_VERSION:
            return (
                f"expected schema_version {SCHEMA_VERSION}, found {version!r}; read it with the "
                "harness version that wrote it"
            )
        return from_jsonable(Night, item)
    except (ValueError, TypeError, AttributeError):
        return "no night: its first line cannot be read"
