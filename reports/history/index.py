"""An index of a store in SQLite, on local disk: thrown away and rebuilt at will.

Never on the store's own file system: SQLite on a network share has lost data, above all in WAL
mode, which needs memory that its users share.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness.record.codec import from_jsonable, to_jsonable
from reports.history.night import Entry, Night, well_formed
from reports.history.store import StoreError, night_files, read_night

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id INTEGER PRIMARY KEY, file TEXT UNIQUE, size INTEGER, mtime INTEGER,
    started TEXT, key TEXT, head TEXT, warnings TEXT
);
CREATE TABLE IF NOT EXISTS entries (
    night INTEGER, scenario TEXT, body TEXT, PRIMARY KEY (night, scenario)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS points (
    night INTEGER, scenario TEXT, metric TEXT, value REAL,
    PRIMARY KEY (night, scenario, metric)
) WITHOUT ROWID;
"""


def index_path(store: Path) -> Path:
    """Return where the index of a store lies: a folder of caches on this machine."""
    base = os.environ.get("SLURM_TMPDIR") or os.environ.get("XDG_CACHE_HOME")
    folder = Path(base) if base else Path(tempfile.gettempdir())
    digest = hashlib.sha256(str(store.resolve()).encode()).hexdigest()[:16]
    return folder / f"dsa-harness-{os.getuid()}" / f"history-{digest}.{_VERSION}.sqlite"


class Index:
    """The nights of one store, brought up to date when opened."""

    def __init__(self, store: Path, path: Path | None = None) -> None:
        """Open the index and read what is new in the store.

        Raises:
            StoreError: if the store cannot be read, or the index not be written.
        """
        self._store = store
        self._path = path or index_path(store)
        self.warnings: list[str] = []
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._open_or_rebuild()
        except (OSError, sqlite3.DatabaseError) as error:
            raise StoreError(
                f"{self._path}: the index of {store} cannot be written ({error}); point "
                "XDG_CACHE_HOME at a folder of this machine that can"
            ) from error

    def _open_or_rebuild(self) -> None:
        try:
            self._open()
        except sqlite3.DatabaseError:
            # A broken cache is no news: what it was made of is still there.
            self._path.unlink(missing_ok=True)
            self._open()

    def _open(self) -> None:
        self._db = sqlite3.connect(self._path, timeout=60.0, isolation_level=None)
        try:
            self._db.executescript(_SCHEMA)
            self._update()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Close the index."""
        self._db.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _update(self) -> None:
        files = {str(path.relative_to(self._store)): path for path in night_files(self._store)}
        known = {
            name: (size, mtime, warnings)
            for name, size, mtime, warnings in self._db.execute(
                "SELECT file, size, mtime, warnings FROM files"
            )
        }
        with self._transaction():
            for name in known.keys() - files.keys():
                self._forget(name)
            for name, path in files.items():
                stat = path.stat()
                if name in known and known[name][:2] == (stat.st_size, stat.st_mtime_ns):
                    self.warnings += json.loads(known[name][2])
                    continue
                self._forget(name)
                self._take(name, path, stat)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _forget(self, name: str) -> None:
        for (number,) in self._db.execute(
            "SELECT id FROM files WHERE file = ?", (name,)
        ).fetchall():
            self._db.execute("DELETE FROM entries WHERE night = ?", (number,))
            self._db.execute("DELETE FROM points WHERE night = ?", (number,))
            self._db.execute("DELETE FROM files WHERE id = ?", (number,))

    def _take(self, name: str, path: Path, stat: os.stat_result) -> None:
        read = read_night(path)
        self.warnings += read.warnings
        night = read.night
        head = "" if night is None else json.dumps(to_jsonable(replace(night, entries=())))
        cursor = self._db.execute(
            "INSERT INTO files (file, size, mtime, started, key, head, warnings)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                name,
                stat.st_size,
                stat.st_mtime_ns,
                "" if night is None else night.started_at,
                "" if night is None else night.key.text,
                head,
                json.dumps(read.warnings),
            ),
        )
        if night is None:
            return
        number = cursor.lastrowid
        # The last line of an id counts.
        by_id = {
            well_formed(item["id"]): (item, line)
            for item, line in zip(read.items, read.lines, strict=True)
        }
        self._db.executemany(
            "INSERT INTO entries VALUES (?, ?, ?)",
            ((number, name, line) for name, (_, line) in by_id.items()),
        )
        self._db.executemany(
            "INSERT INTO points VALUES (?, ?, ?, ?)",
            (
                (number, name, metric, value)
                for name, (item, _) in by_id.items()
                for metric, value in item.get("metrics", {}).items()
            ),
        )

    def heads(self) -> list[tuple[int, Night]]:
        """Return (number, night without its entries), oldest first."""
        rows = self._db.execute(
            "SELECT id, head FROM files WHERE head != '' ORDER BY started, file"
        ).fetchall()
        return [(number, from_jsonable(Night, json.loads(head))) for number, head in rows]

    def with_entries(self, number: int, head: Night) -> Night:
        """Return a night with its entries."""
        rows = self._db.execute("SELECT body FROM entries WHERE night = ?", (number,))
        entries = tuple(from_jsonable(Entry, json.loads(body)) for (body,) in rows)
        return replace(head, entries=entries)

    def series(self, numbers: list[int]) -> dict[str, dict[str, list[tuple[int, float]]]]:
        """Return scenario to metric to (night, value), for some nights in their order."""
        found: dict[str, dict[str, list[tuple[int, float]]]] = {}
        for number in numbers:
            rows = self._db.execute(
                "SELECT scenario, metric, value FROM points WHERE night = ?", (number,)
            )
            for scenario, metric, value in rows:
                metrics = found.setdefault(scenario, {})
                metrics.setdefault(metric, []).append((number, value))
        return found
