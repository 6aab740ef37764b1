"""YAML text to plain data, with YAML 1.2 scalars and the position of every key and value.

PyYAML follows YAML 1.1, where ``on`` is true, ``017`` is fifteen, ``1:30`` is ninety and the last
of two equal keys wins. Editors and the generated schema follow 1.2, so this module does as well,
at the speed of the C parser. Input is untrusted: no tags, bounded size, depth and aliases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from harness.scenario.problems import NodePath, Problem

MAX_BYTES = 1 << 20
"""Greatest size of a scenario file; a larger one is a mistake or an attack."""
MAX_DEPTH = 32
"""Greatest nesting of lists and mappings; the deepest valid file needs six."""
MAX_ALIASES = 64
"""Greatest number of ``*alias`` uses."""
MAX_NODES = 50_000
"""Greatest number of values, each alias counted for all it stands for."""

_TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep; no valid file needs more than six"

_CORE = "tag:yaml.org,2002:"
_PLAIN = "plain"
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)


class _Loader(yaml.CSafeLoader):
    """The C loader without YAML 1.1's implicit types; plain scalars are typed by this module."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _CORE + "str"
        return _CORE + ("seq" if kind is yaml.SequenceNode else "map")


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """Position in a file, both numbers 1-based."""

    line: int
    column: int


@dataclass(kw_only=True, slots=True)
class Document:
    """Plain data of one file and where each part of it stands.

    Attributes:
        data: Nested dicts, lists and scalars.
        keys: Path of a mapping entry to the position of its key.
        values: Path of any value to its position.
    """

    file: str
    data: Any = None
    keys: dict[NodePath, Mark] = field(default_factory=dict)
    values: dict[NodePath, Mark] = field(default_factory=dict)

    def at_value(self, path: NodePath) -> Mark:
        """Position of a value; where there is none, of the key of the nearest part above it."""
        return self.values[path] if path in self.values else self.at_key(path)

    def at_key(self, path: NodePath) -> Mark:
        """Position of a key, or of the nearest key above it, or the start of the file."""
        while path:
            if mark := self.keys.get(path) or self.values.get(path):
                return mark
            path = path[:-1]
        return self.values.get((), Mark(line=1, column=1))

    def problem(self, mark: Mark, message: str) -> Problem:
        """Make a problem of this file."""
        return Problem(file=self.file, line=mark.line, column=mark.column, message=message)


class _Refused(Exception):  # noqa: N818 (never leaves this module)
    """Reading cannot go on; carries the only problem."""

    def __init__(self, mark: Mark, message: str) -> None:
        super().__init__(message)
        self.mark = mark
        self.message = message


def parse(text: str, file: str) -> tuple[Document, tuple[Problem, ...]]:
    """Read one YAML document.

    Args:
        text: The file's text, already decoded.
        file: Name for messages.

    Returns:
        The document, and what is wrong with it as YAML. With a syntax error the document's
        ``data`` is None; with a repeated key or an unreadable scalar it holds all the rest.
    """
    document = Document(file=file)
    problems: list[Problem] = []
    try:
        node = _compose(text)
        if node is not None:
            document.data = _Reader(document, problems).read(node, (), depth=0)
    except _Refused as refused:
        document.data = None
        problems.append(document.problem(refused.mark, refused.message))
    return document, tuple(problems)


def _compose(text: str) -> yaml.Node | None:
    try:
        _check_bounds(text)
        loader = _Loader(text)
        try:
            return loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise _Refused(*_explain(error, text)) from error
    except yaml.reader.ReaderError as error:
        raise _Refused(*_explain_character(error, text)) from error


def _check_bounds(text: str) -> None:
    """Refuse deep nesting and many aliases before a recursive step sees them."""
    depth = aliases = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
        if depth > MAX_DEPTH:
            raise _Refused(_mark(event.start_mark), _TOO_DEEP)
        if aliases > MAX_ALIASES:
            message = f"more than {MAX_ALIASES} aliases in one file; write some of them out"
            raise _Refused(_mark(event.start_mark), message)


def _mark(mark: Any) -> Mark:
    return Mark(line=mark.line + 1, column=mark.column + 1)


def _explain(error: yaml.MarkedYAMLError, text: str) -> tuple[Mark, str]:
    where = error.problem_mark or error.context_mark
    if where is None:
        return Mark(line=1, column=1), f"not valid YAML: {error.problem}"
    if error.problem == "but found another document":
        return _mark(where), "one scenario per file; found a second document behind '---'"
    if error.problem == "exceeded maximum nesting depth":
        return _mark(where), _TOO_DEEP
    lines = text.splitlines()
    line = lines[where.line] if where.line < len(lines) else ""
    if "\t" in line[: where.column + 1]:
        return _mark(where), "not valid YAML: a tab stands where YAML allows spaces only"
    context = f"{error.context}: " if error.context else ""
    return _mark(where), f"not valid YAML: {context}{error.problem}"


def _explain_character(error: yaml.reader.ReaderError, text: str) -> tuple[Mark, str]:
    # The C parser counts bytes of the UTF-8 form.
    raw = text.encode()
    before = raw[: error.position].decode(errors="ignore")
    mark = Mark(line=before.count("\n") + 1, column=len(before) - before.rfind("\n"))
    found = raw[error.position :].decode(errors="ignore")[:1]
    named = f"character U+{ord(found):04X}" if found else "a character"
    return mark, f"{named} is not allowed in YAML; remove it"


class _Reader:
    """Turns a node tree into data, keeping positions and collecting what can be survived."""

    def __init__(self, document: Document, problems: list[Problem]) -> None:
        self.document = document
        self.problems = problems
        self.num_nodes = 0

    def read(self, node: yaml.Node, path: NodePath, *, depth: int) -> Any:
        mark = _mark(node.start_mark)
        self.num_nodes += 1
        # An alias may hold itself, or double with every level, so the tree is bounded as well.
        if depth > MAX_DEPTH:
            message = f"nested more than {MAX_DEPTH} levels deep, aliases written out; use fewer"
            raise _Refused(mark, message)
        if self.num_nodes > MAX_NODES:
            raise _Refused(mark, f"more than {MAX_NODES} values, aliases written out; use fewer")
        self.document.values[path] = mark
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, mark)
        if isinstance(node, yaml.SequenceNode):
            self._check_tag(node, "seq", mark)
            items = enumerate(node.value)
            return [self.read(item, (*path, index), depth=depth + 1) for index, item in items]
        assert isinstance(node, yaml.MappingNode)
        self._check_tag(node, "map", mark)
        return dict(self._entries(node, path, depth))

    def _entries(
        self, node: yaml.MappingNode, path: NodePath, depth: int
    ) -> Iterator[tuple[str, Any]]:
        for key_node, value_node in node.value:
            mark = _mark(key_node.start_mark)
            if not isinstance(key_node, yaml.ScalarNode):
                self._report(mark, "a key is a plain word, not a list or a mapping")
                continue
            key = key_node.value
            here = (*path, key)
            if first := self.document.keys.get(here):
                self._report(mark, f"{key}: repeated key, first on line {first.line}; keep one")
                continue
            self.document.keys[here] = mark
            yield key, self.read(value_node, here, depth=depth + 1)

    def _scalar(self, node: yaml.ScalarNode, mark: Mark) -> Any:
        if node.tag != _PLAIN:
            self._check_tag(node, "str", mark)
            return node.value
        try:
            return plain_scalar(node.value)
        except ValueError as error:
            self._report(mark, f"number {node.value[:20]}... cannot be read: {error}")
            return None

    def _check_tag(self, node: yaml.Node, kind: str, mark: Mark) -> None:
        if node.tag != _CORE + kind:
            self._report(mark, f"tag {_short_tag(node.tag)} is not allowed; write a plain value")

    def _report(self, mark: Mark, message: str) -> None:
        self.problems.append(self.document.problem(mark, message))


def _short_tag(tag: str) -> str:
    return tag.replace(_CORE, "!!")


def plain_scalar(text: str) -> bool | int | float | str | None:
    """Type an unquoted scalar by the YAML 1.2 core schema.

    Raises:
        ValueError: for a number that Python cannot hold, such as one of 5000 digits.
    """
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE", "false", "False", "FALSE"):
        return text[0] in "tT"
    if _INT.fullmatch(text):
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text
