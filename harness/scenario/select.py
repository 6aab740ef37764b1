"""Choosing scenarios by an expression over their ids and by tags.

The expression is that of pytest's ``-k``: words with ``and``, ``or``, ``not`` and parentheses; a
word holds when it is part of the id, whatever the case, and ``=word`` only when it is the whole id.
Words may hold any character of an id, such as ``quickstart/unfused[cp4``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from harness.scenario.spec import Scenario

_TOKEN = re.compile(r"\s*([()]|[^\s()]+)")
_MAX_DEPTH = 50

Predicate = Callable[[str], bool]


class ExpressionError(ValueError):
    """An expression that cannot be read; the text points at the place."""


def by_id(expression: str, *, named: str = "-k: ") -> Predicate:
    """Turn an expression into a test of ids; an empty one accepts all.

    Args:
        expression: Words with and, or, not and parentheses.
        named: What errors start with.

    Raises:
        ExpressionError: naming the place and what was expected there.
    """
    return _Parser(expression, named).parse()


def select(
    scenarios: Iterable[Scenario], *, expression: str | None = None, tags: Iterable[str] = ()
) -> tuple[Scenario, ...]:
    """Keep scenarios whose id meets the expression and that have all tags, in order.

    Raises:
        ExpressionError: see ``by_id``.
    """
    wanted = frozenset(tags)
    keep: Predicate = by_id(expression) if expression is not None else lambda _: True
    return tuple(s for s in scenarios if keep(s.id) and wanted <= set(s.tags))


class _Parser:
    """Recursive descent over ``or``, ``and``, ``not`` and parentheses, in order of binding."""

    def __init__(self, text: str, named: str) -> None:
        self.text = text
        self.named = named
        self.tokens = [(m.start(1), m.group(1)) for m in _TOKEN.finditer(text)]
        self.next = 0
        self.depth = 0

    def parse(self) -> Predicate:
        if not self.tokens:
            return lambda _: True
        result = self._either()
        if self._peek() is not None:
            raise self._expected("'and' or 'or'")
        return result

    def _either(self) -> Predicate:
        options = [self._both()]
        while self._take("or"):
            options.append(self._both())
        return lambda name: any(option(name) for option in options)

    def _both(self) -> Predicate:
        parts = [self._one()]
        while self._take("and"):
            parts.append(self._one())
        return lambda name: all(part(name) for part in parts)

    def _one(self) -> Predicate:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise ExpressionError(
                f"{self.named}nested more than {_MAX_DEPTH} levels deep; leave out parentheses"
            )
        try:
            if self._take("not"):
                inner = self._one()
                return lambda name: not inner(name)
            if self._take("("):
                inside = self._either()
                if not self._take(")"):
                    raise self._expected("')'")
                return inside
            return self._word()
        finally:
            self.depth -= 1

    def _word(self) -> Predicate:
        token = self._peek()
        if token is None or token.lower() in ("and", "or", ")"):
            raise self._expected("a word")
        self.next += 1
        part = token.lower()
        if part.startswith("=") and len(part) > 1:
            return lambda name: part[1:] == name.lower()
        return lambda name: part in name.lower()

    def _peek(self) -> str | None:
        return self.tokens[self.next][1] if self.next < len(self.tokens) else None

    def _take(self, token: str) -> bool:
        found = self._peek()
        if found is None or found.lower() != token:
            return False
        self.next += 1
        return True

    def _expected(self, what: str) -> ExpressionError:
        found = self._peek()
        place = len(self.text) if found is None else self.tokens[self.next][0]
        named = "the end" if found is None else f"'{found}'"
        return ExpressionError(
            f"{self.named}expected {what} at column {place + 1}, found {named} in '{self.text}'; "
            "write such as 'cudnn and not (cp4 or cp2)'"
        )
