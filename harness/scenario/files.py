"""Finding and reading scenario and model files. A failure becomes a problem, not an exception."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from harness.scenario.problems import Problem
from harness.scenario.yaml12 import MAX_BYTES

SUFFIXES = (".yaml", ".yml")
PROJECT_ROOT = Path(__file__).resolve().parents[2]
MODELS_DIR = PROJECT_ROOT / "configs" / "models"
"""Where ``model: NAME`` is looked up. The project is used from a checkout."""


def shown(path: Path) -> str:
    """Return a path as text that every terminal and JSON reader takes, odd bytes escaped."""
    return str(path).encode(errors="backslashreplace").decode()


def whole_file(path: Path, message: str) -> Problem:
    """Make a problem about a file that could not be read."""
    return Problem(file=shown(path), line=0, column=0, message=message)


def find(paths: Iterable[str | Path]) -> Iterator[Path | Problem]:
    """Yield the files below some paths, each once, in order, or why a path has none."""
    seen: set[Path] = set()
    for given in map(Path, paths):
        try:
            below = list(_below(given))
        except OSError as error:
            yield whole_file(given, f"cannot be read: {error.strerror or error}")
            continue
        for found in below:
            if isinstance(found, Problem):
                yield found
            elif (real := found.resolve()) not in seen:
                seen.add(real)
                yield found


def _below(path: Path) -> Iterator[Path | Problem]:
    if not path.exists():
        yield whole_file(path, "no such file or folder; give a scenario file, or a folder of them")
        return
    if not path.is_dir():
        yield path
        return
    found = sorted(_walk(path))
    if not found:
        yield whole_file(path, "no scenario file (*.yaml) in this folder or below it")
    yield from found


def _walk(path: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(path, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield Path(folder) / name


def read_text(path: Path) -> str | Problem:
    """Return a file's text, or why it cannot be had."""
    try:
        if not path.is_file():
            return whole_file(path, "not a regular file; give a scenario file")
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return whole_file(path, f"cannot be read: {error.strerror or error}")
    if len(raw) > MAX_BYTES:
        return whole_file(path, f"larger than {MAX_BYTES} bytes; no scenario needs that, split it")
    try:
        # A byte-order mark is what some Windows editors write; it carries no meaning in UTF-8.
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        return Problem(file=shown(path), line=line, column=column, message=message)
