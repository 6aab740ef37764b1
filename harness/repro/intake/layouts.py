"""Boundaries and lengths of packed sequences, as people print and paste them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.repro.intake.facts import Fact, Facts
from harness.repro.intake.lines import MAX_LINE, Line

_BOUNDS = re.compile(
    r"\b(cu_seqlens(?:_q|_kv|_k)?(?:_padded)?)\b[\"']?\s{0,4}(?:[=:]|are|is)?\s{0,4}"
    r"(?:torch\.)?(?:tensor\()?\s{0,4}\[([^\]]{0,4000})(\]?)"
)
_LENGTHS = re.compile(
    r"(?i)\b(seq_?lens|sequence[ _]lengths?|sequences|document[ _]lengths?|doc[ _]lens)\b"
    r"[\"']?\s{0,4}(?:[=:]|are|is|of)?\s{0,4}(?:torch\.)?(?:tensor\()?\[([^\]]{0,4000})(\]?)"
)
_HINT = ("cu_seqlens", "eq_lens", "eqlens", "equence", "ocument", "doc_len", "SEQ")
_MORE_LINES = 400
_NEARLY_CUT = MAX_LINE - 40
"""A line of this length may have been longer than what is read of it, its prefix counted."""
_NUMBERS = re.compile(r"[\s\d,.…-]*")
_NUMBER = re.compile(r"-?\d{1,40}\.?\d{0,40}|\.{3},?|…")
_DOTS = ("...", "…")
_NAMES = {
    "cu_seqlens": "cu_seqlens_q",
    "cu_seqlens_padded": "cu_seqlens_q_padded",
    "cu_seqlens_k": "cu_seqlens_kv",
    "cu_seqlens_k_padded": "cu_seqlens_kv_padded",
}
LISTS = ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")
"""Names of boundaries."""
_MOST_NOTES = 8


@dataclass(frozen=True, slots=True)
class _Begun:
    """A list whose end was not read yet."""

    word: str
    line: Line
    parts: list[str]

    def cut_off(self) -> Iterator[Fact]:
        """Yield that its end is missing, where anything of it was there."""
        if any(part.strip() for part in self.parts):
            reason = f"its end is missing (of a line {MAX_LINE} characters are read)"
            yield Fact(name=_name(self.word), value=reason, line=self.line, form="lengths")


def layout_facts(lines: Sequence[Line]) -> Iterator[Fact]:
    """Yield boundaries (from 0, not falling) and lengths (of at least one sequence).

    The value of a list that cannot be used is a text that says why.
    """
    yield from sorted(_lists(lines), key=lambda fact: fact.line.number)


def notes_on_lists(facts: Facts) -> Iterator[str]:
    """Yield the lists that cannot be used, each with its place and the reason."""
    unusable = [fact for fact in facts.of(*LISTS, "sequences") if isinstance(fact.value, str)]
    for fact in unusable[:_MOST_NOTES]:
        yield f"{fact.name} ({fact.line.place}): not taken, {fact.value}"
    if len(unusable) > _MOST_NOTES:
        yield f"{len(unusable) - _MOST_NOTES} more lists that cannot be used"


def _lists(lines: Sequence[Line]) -> Iterator[Fact]:
    """Yield lists as they end; each rank goes on with its own, whoever prints in between."""
    begun: dict[int | None, _Begun] = {}
    number = 0
    for line in lines:
        if line.number != number + 1:
            yield from _cut_off(begun)
        number = line.number
        if begun:
            yield from _go_on(begun, line)
        if any(hint in line.text for hint in _HINT):
            for pattern in (_BOUNDS, _LENGTHS):
                for found in pattern.finditer(line.text):
                    yield from _begin(begun, found, line)
    yield from _cut_off(begun)


def _begin(begun: dict[int | None, _Begun], found: re.Match[str], line: Line) -> Iterator[Fact]:
    word, inside, closed = found[1].lower(), found[2], found[3]
    is_index = line.text[found.end(1)] == "["
    if closed:
        yield from (fact for fact in _fact(word, inside, line) if _is_list(fact) or not is_index)
    elif _NUMBERS.fullmatch(inside) and not is_index:
        one = _Begun(word, line, [inside])
        if len(line.text) > _NEARLY_CUT:
            yield from one.cut_off()
        else:
            begun[line.rank] = one


def _go_on(begun: dict[int | None, _Begun], line: Line) -> Iterator[Fact]:
    """Give a line to the list that it goes on with."""
    inside, closed, _rest = line.text.partition("]")
    goes_on = _NUMBERS.fullmatch(inside) is not None
    rank = line.rank
    if rank not in begun:
        # Only the first line of what is printed may have the prefix.
        if rank is not None or not goes_on or not (closed or inside.rstrip().endswith(",")):
            return
        if len(begun) > 1:
            yield from _cut_off(begun)
            return
        rank = next(iter(begun))
    one = begun[rank]
    one.parts.append(inside)
    if not goes_on or (not closed and len(one.parts) > _MORE_LINES):
        yield from begun.pop(rank).cut_off()
    elif closed:
        yield from _fact(one.word, " ".join(begun.pop(rank).parts), one.line)


def _cut_off(begun: dict[int | None, _Begun]) -> Iterator[Fact]:
    for one in begun.values():
        yield from one.cut_off()
    begun.clear()


def _fact(word: str, inside: str, line: Line) -> Iterator[Fact]:
    is_bounds = word.startswith("cu_seqlens")
    value = _boundaries(inside) if is_bounds else _lengths(inside)
    if value is not None:
        yield Fact(name=_name(word), value=value, line=line, form="lengths")


def _is_list(fact: Fact) -> bool:
    return isinstance(fact.value, tuple)


def _name(word: str) -> str:
    return _NAMES.get(word, word) if word.startswith("cu_seqlens") else "sequences"


def _boundaries(text: str) -> tuple[int, ...] | str | None:
    """Return boundaries, why they are none, or None for what is no list of numbers."""
    if not text.strip():
        return "it is empty"
    values = _numbers(text, "boundary")
    if not isinstance(values, tuple):
        return values
    if values[0] != 0:
        return f"it begins at {values[0]}, not at 0"
    if len(values) == 1:
        return "it has no sequence"
    fall = next(((a, b) for a, b in pairwise(values) if b < a), None)
    if fall is not None:
        return f"it falls from {fall[0]} to {fall[1]}, which may be the fault itself"
    return values


def _lengths(text: str) -> tuple[int, ...] | str | None:
    parts = text.replace(",", " ").split()
    # Brackets after a word of prose may hold anything.
    if not all(_NUMBER.fullmatch(part) for part in parts):
        return None
    return _numbers(text, "length")


def _numbers(text: str, what: str) -> tuple[int, ...] | str | None:
    parts = text.replace(",", " ").split()
    if not parts or not parts[0].lstrip("-")[:1].isdigit():
        return None
    if any(dots in parts for dots in _DOTS):
        return (
            "it was shortened when it was printed; ask for all of it, as after "
            'torch.set_printoptions(profile="full")'
        )
    odd = next((p for p in parts if not (p.isascii() and p.isdigit() and len(p) < 13)), None)
    if odd is not None:
        return f"it holds {odd[:20]}, which is no {what}"
    return tuple(int(part) for part in parts)
