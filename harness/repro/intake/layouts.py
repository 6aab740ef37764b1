"""Boundaries and lengths of packed sequences, as people print and paste them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

from harness.repro.intake.facts import Fact
from harness.repro.intake.lines import Line

_BOUNDS = re.compile(
    r"\b(cu_seqlens(?:_q|_kv|_k)?(?:_padded)?)\b[\"']?\s{0,4}(?:[=:]|are|is)?\s{0,4}"
    r"(?:torch\.)?(?:tensor\()?\s{0,4}\[([^\]]{0,3900})(\]?)"
)
_LENGTHS = re.compile(
    r"(?i)\b(seq_?lens|sequence[ _]lengths?|sequences|document[ _]lengths?|doc[ _]lens)\b"
    r"[\"']?\s{0,4}(?:[=:]|are|is|of)?\s{0,4}(?:torch\.)?(?:tensor\()?\[([^\]]{0,3900})(\]?)"
)
_MORE_LINES = 400
_HINT = ("cu_seqlens", "eq_lens", "eqlens", "equence", "ocument", "doc_len", "SEQ")


def layout_facts(lines: Sequence[Line]) -> Iterator[Fact]:
    """Yield boundaries (from 0, not falling) and lengths (of at least one sequence)."""
    for place, line in enumerate(lines):
        if not any(hint in line.text for hint in _HINT):
            continue
        for pattern in (_BOUNDS, _LENGTHS):
            for found in pattern.finditer(line.text):
                inside = found[2] if found[3] else _joined(lines, place, found[2])
                values = _numbers(inside)
                if values is not None:
                    yield from _fact(found[1].lower(), values, line)


def _joined(lines: Sequence[Line], place: int, start: str) -> str:
    """Text up to the closing bracket, over the lines that a long tensor is printed on."""
    parts = [start]
    for line in lines[place + 1 : place + 1 + _MORE_LINES]:
        inside, closed, _rest = line.text.partition("]")
        parts.append(inside)
        if closed:
            return " ".join(parts)
    return ""


def _numbers(text: str) -> tuple[int, ...] | None:
    # A list that was shortened when it was printed has dots in it, and is none.
    parts = [part.strip() for part in text.split(",")]
    if parts and not parts[-1]:
        parts.pop()
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 13 for part in parts):
        return None
    return tuple(int(part) for part in parts)


def _fact(word: str, values: tuple[int, ...], line: Line) -> Iterator[Fact]:
    if word.startswith("cu_seqlens"):
        name = {"cu_seqlens": "cu_seqlens_q", "cu_seqlens_padded": "cu_seqlens_q_padded"}.get(
            word, word
        )
        name = name.replace("_k_padded", "_kv_padded")
        name = "cu_seqlens_kv" if name == "cu_seqlens_k" else name
        if len(values) > 1 and values[0] == 0 and all(a <= b for a, b in pairwise(values)):
            yield Fact(name=name, value=values, line=line, form="lengths")
    else:
        yield Fact(name="sequences", value=values, line=line, form="lengths")
