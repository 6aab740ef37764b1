"""What a job says to the recorder, by environment variables."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = "DSA_HARNESS_CAPTURE"
RING = "DSA_HARNESS_CAPTURE_RING"
SCORES = "DSA_HARNESS_CAPTURE_SCORES"
TENSORS = "DSA_HARNESS_CAPTURE_TENSORS"
LAYERS = "DSA_HARNESS_CAPTURE_LAYERS"

DEFAULT_FOLDER = "dsa-capture"
DEFAULT_RING = 32
AUTO, OFF, ALL = "auto", "off", "all"

_SIZE = re.compile(r"(\d{1,15})([KMGT]?)(?:i?B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How much is recorded.

    Attributes:
        folder: Where files go; one folder for all ranks.
        ring: Microbatches that a rank keeps at least; on disk there are at most twice as many.
        score_rows: Rows of a score matrix that its statistics look at: ``auto`` (as many as hold
            a quarter of a million scores), ``all``, ``off`` or a number.
        tensor_bytes: Bytes of tensors that a rank may keep on disk; 0 keeps none.
        tensor_layers: Layers whose tensors are kept; empty is the first one of the process.
    """

    folder: Path
    ring: int = DEFAULT_RING
    score_rows: str | int = AUTO
    tensor_bytes: int = 0
    tensor_layers: tuple[int, ...] = ()

    @classmethod
    def from_environment(
        cls, folder: str | Path | None = None, environ: Mapping[str, str] | None = None
    ) -> Settings:
        """Read the variables; one that cannot be read is said so, and left at its default."""
        given = os.environ if environ is None else environ
        return cls(
            folder=Path(folder or given.get(FOLDER) or DEFAULT_FOLDER).absolute(),
            ring=_number(given, RING, DEFAULT_RING, least=1),
            score_rows=_rows(given),
            tensor_bytes=_bytes(given),
            tensor_layers=_layers(given),
        )


def _number(given: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    text = given.get(name, "").strip()
    if not text:
        return default
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least:
        return int(text)
    _complain(name, text, f"a number from {least} on", str(default))
    return default


def _rows(given: Mapping[str, str]) -> str | int:
    text = given.get(SCORES, "").strip().lower()
    if text in ("", AUTO, OFF, ALL):
        return text or AUTO
    if text.isascii() and text.isdigit() and 0 < len(text) < 10:
        return int(text) or OFF
    _complain(SCORES, text, "auto, off, all or a number of rows", AUTO)
    return AUTO


def _bytes(given: Mapping[str, str]) -> int:
    text = given.get(TENSORS, "").strip()
    if not text:
        return 0
    found = _SIZE.fullmatch(text)
    if found is None:
        _complain(TENSORS, text, "a number of bytes such as 512M", "0")
        return 0
    return int(found[1]) * _UNITS[found[2].upper()]


def _layers(given: Mapping[str, str]) -> tuple[int, ...]:
    text = given.get(LAYERS, "").strip()
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if all(part.isascii() and part.isdigit() and len(part) < 7 for part in parts):
        return tuple(int(part) for part in parts)
    _complain(LAYERS, text, "layer numbers such as 1,2", "the first layer")
    return ()


def _complain(name: str, found: str, expected: str, taken: str) -> None:
    line = f"dsa_capture: {name}: expected {expected}, found {found[:40]!r}; taken as {taken}"
    print(line, file=sys.stderr)  # noqa: T201
