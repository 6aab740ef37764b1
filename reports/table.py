"""A table as plain data, before any escaping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_ROWS = 40
"""Longest table of evidence; the rest is in the result file, and the table says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A titled table.

    Attributes:
        code: Columns that hold identifiers, commands or other text to be shown as code.
        links: Columns that hold links.
        num_left_out: Rows that are not shown.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    code: tuple[int, ...] = ()
    links: tuple[int, ...] = ()
    num_left_out: int = 0


def table(
    title: str,
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    code: tuple[int, ...] = (),
    links: tuple[int, ...] = (),
    most: int = MAX_ROWS,
) -> Table:
    """Make a table of at most ``most`` rows that says how many it leaves out."""
    every = [tuple(row) for row in rows]
    return Table(
        title=title,
        header=tuple(header),
        rows=tuple(every[:most]),
        code=code,
        links=links,
        num_left_out=max(0, len(every) - most),
    )
