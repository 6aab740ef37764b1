"""Tables of evidence kinds that have no table of their own: one column for each field.

A kind that is added to ``Attempt`` shows up here without a line of code, so that nothing recorded
stays unseen; a kind that deserves better gets its own table and its name in ``SHOWN_ELSEWHERE``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from harness.record.result import Attempt
from reports.table import Table, table
from reports.text import number_ranges, shorten

SHOWN_ELSEWHERE = frozenset(
    {
        *("ranks", "selections", "windows", "behaviours", "paths", "values", "calls", "notes"),
        *("sanitizer", "core_dumps", "secondary", "memos", "deviations", "layouts"),
        *("transfers", "states", "launches", "graphs", "copies", "replays", "memory"),
    }
)
"""Fields of ``Attempt`` that other tables show."""

_WHO = ("cp_rank", "global_rank")
_LONGEST = 200


def plain_tables(attempt: Attempt) -> Iterator[Table]:
    """Return a table for each kind of evidence that is shown nowhere else."""
    for field in dataclasses.fields(attempt):
        records = getattr(attempt, field.name)
        if field.name in SHOWN_ELSEWHERE or not isinstance(records, tuple) or not records:
            continue
        if all(dataclasses.is_dataclass(record) for record in records):
            yield plain_table(field.name.replace("_", " ").capitalize(), records)


def plain_table(title: str, records: tuple[Any, ...]) -> Table:
    """One row for each record, or for each part of it where it is made of parts of one kind.

    Records that differ in their rank alone are drawn together.
    """
    who = next((name for name in _WHO if hasattr(records[0], name)), None)
    groups: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for record in records:
        for row in _rows(record):
            ranks = groups.setdefault(tuple(row.items()), [])
            ranks.append(-1 if who is None else getattr(record, who))
    filled = (name for key in groups for name, text in key if text != "-")
    names = list(dict.fromkeys(filled))
    rows = [
        tuple([] if who is None else [number_ranges(ranks)])
        + tuple(dict(key).get(name, "-") for name in names)
        for key, ranks in groups.items()
    ]
    header = tuple([] if who is None else [who]) + tuple(name.replace("_", " ") for name in names)
    return table(title, header, rows)


def _rows(record: Any) -> Iterator[dict[str, str]]:
    """Return a record's fields as texts, once for each of its parts."""
    values = {
        field.name: getattr(record, field.name)
        for field in dataclasses.fields(record)
        if field.name not in _WHO
    }
    parts = {name: value for name, value in values.items() if _is_parts(value)}
    plain = {name: cell_text(value) for name, value in values.items() if name not in parts}
    if len(parts) != 1:
        yield plain | {name: cell_text(value) for name, value in parts.items()}
        return
    for part in next(iter(parts.values())):
        fields = ((field.name, getattr(part, field.name)) for field in dataclasses.fields(part))
        yield plain | {name: cell_text(value) for name, value in fields}


def _is_parts(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(map(dataclasses.is_dataclass, value))


def cell_text(value: Any) -> str:
    """Return any field as a table cell; what is not there is a dash."""
    if value is None or value in ("", (), {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return shorten(", ".join(f"{key} {cell_text(item)}" for key, item in value.items()))
    if dataclasses.is_dataclass(value):
        parts = ((f.name, cell_text(getattr(value, f.name))) for f in dataclasses.fields(value))
        return shorten(", ".join(f"{name} {text}" for name, text in parts if text != "-"), _LONGEST)
    if isinstance(value, tuple):
        return shorten(", ".join(map(cell_text, value)), _LONGEST)
    return shorten(str(value), _LONGEST) or "-"
