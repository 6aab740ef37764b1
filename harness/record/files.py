"""Record files of a run folder: names that cannot leave it, and writes that are whole or absent.

Standard library only: the leader writes with it while a run goes on, reports read with it later.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from harness.record.codec import dumps, from_jsonable
from harness.record.result import SCHEMA_VERSION

RUN_FILE = "run.json"
"""Name of the run record inside a run folder."""
RESULTS_FOLDER = "results"
"""Folder of the scenario results inside a run folder, one file each."""

_KEPT = re.compile(r"[a-z0-9._-]+")
_REPLACED = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST = 120
_HASH_DIGITS = 8


class RecordFileError(ValueError):
    """A record file is missing, cut, or not what it is read as; the message names the file."""


def safe_name(scenario_id: str) -> str:
    """Return a file name for a scenario id, without extension; unequal ids get unequal names.

    A short id of lower-case letters, digits and ``. _ -`` that does not start with a dot stays as
    it is. Any other id has its odd characters replaced, is cut to a length that every file system
    takes, and gets ``~`` and a hash of the id. Upper case counts as odd, because some file systems
    do not tell it from lower case; ``~`` never stays, so that no plain id meets a hashed one.

    >>> safe_name("zigzag-pack")
    'zigzag-pack'
    >>> safe_name("causal/zigzag[cp4]")
    'causal_zigzag_cp4~1073ce03'
    """
    plain = _KEPT.fullmatch(scenario_id) and not scenario_id.startswith(".")
    if plain and len(scenario_id) <= _LONGEST:
        return scenario_id
    digest = hashlib.sha256(scenario_id.encode("utf-8", "surrogatepass")).hexdigest()
    stem = _REPLACED.sub("_", scenario_id)[:_LONGEST].lstrip("._").rstrip("_")
    return f"{stem}~{digest[:_HASH_DIGITS]}" if stem else f"id~{digest[:_HASH_DIGITS]}"


def result_path(run_dir: Path, scenario_id: str) -> Path:
    """Return the file of a scenario's result; always directly inside ``results/``."""
    return run_dir / RESULTS_FOLDER / f"{safe_name(scenario_id)}.json"


def write_text(path: Path, text: str) -> None:
    """Write a file so that readers see the old content or the whole new one, never a part.

    The folder is created when it is missing. Lone surrogates, which hostile or broken texts hold,
    become backslash escapes instead of an error; inside JSON that is their proper spelling.

    Raises:
        OSError: if the folder or file cannot be written; nothing is left behind then.
    """
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_record(path: Path, record: object) -> None:
    """Write a record as indented JSON, atomically.

    Raises:
        OSError: as ``write_text``.
        TypeError: if the record holds something that has no JSON form.
    """
    write_text(path, dumps(record, indent=1) + "\n")


def read_record[T](path: Path, cls: type[T]) -> T:
    """Read a record of type ``cls`` back.

    Raises:
        RecordFileError: if the file is missing, unreadable, cut, of another schema version, or does
            not hold a consistent ``cls``.
    """
    data = _read_json(path)
    version = data.get("schema_version", SCHEMA_VERSION) if isinstance(data, dict) else None
    if version is not None and version != SCHEMA_VERSION:
        raise RecordFileError(
            f"{path}: expected schema_version {SCHEMA_VERSION}, found {version!r}; "
            "read it with the harness version that wrote it"
        )
    try:
        return from_jsonable(cls, data)
    except ValueError as error:
        raise RecordFileError(f"{path}: not a {cls.__name__}: {error}") from error
    except RecursionError as error:
        raise RecordFileError(f"{path}: nested too deeply") from error


def _read_json(path: Path) -> Any:
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise RecordFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise RecordFileError(f"{path}: not UTF-8 text at byte {error.start}") from error
    if not text.strip():
        raise RecordFileError(f"{path}: empty; the write did not finish")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise RecordFileError(f"{path}: cut or no JSON at {place}: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        raise RecordFileError(f"{path}: no readable JSON: {error}") from error
