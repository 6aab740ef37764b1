"""pydantic's findings as sentences: what was found, what is expected, what to change, and where."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from harness.scenario.fields import UNION_TAGS
from harness.scenario.matrix_schema import LEAVES
from harness.scenario.names import did_you_mean, nearest
from harness.scenario.problems import NodePath, Problem, show_path
from harness.scenario.schema import ScenarioFile
from harness.scenario.yaml12 import Document

_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_BOUNDS = {
    "greater_than": ("gt", "above {}"),
    "greater_than_equal": ("ge", "at least {}"),
    "less_than": ("lt", "below {}"),
    "less_than_equal": ("le", "at most {}"),
}
_PATTERNS = {
    "id": "words of letters, digits, '.', '_' and '-', with '/' between them",
    "schedule": "F or B and the index of a microbatch, such as F0 or B1",
    "inject": "KIND@rank:phase, such as past_limit@1:select",
    "link": "a link that starts with http:// or https://",
    "source": "a link that starts with http:// or https://",
    "summary": "one line of text",
    "what": "one line of text",
    "value": "one line of text",
    "scenarios": "one line of text",
    "select": "one line of text",
}
_ADDED = UNION_TAGS | {"[key]"}
"""Parts of a path that pydantic adds and that match no node of the file."""
_WORD = "a word of letters, digits, '.', '_' and '-'"


def explain(
    error: ValidationError,
    document: Document,
    prefix: NodePath = (),
    root: type[BaseModel] = ScenarioFile,
) -> Iterator[Problem]:
    """Turn every finding of a validation into a problem with its place in the file.

    Args:
        error: From validating the part of the document below ``prefix``.
        document: Positions.
        prefix: Path of that part.
        root: Model of the whole file, to find the keys there are.
    """
    details = error.errors(include_url=False)
    # A mistyped key is both unknown and missing; the first complaint says what to change.
    meant = {
        (*detail["loc"][:-1], nearest(str(detail["loc"][-1]), _siblings(detail, prefix, root)))
        for detail in details
        if detail["type"] == "extra_forbidden"
    }
    for detail in details:
        if detail["type"] != "missing" or detail["loc"] not in meant:
            yield _explain_one(detail, document, prefix, root)


def _siblings(detail: ErrorDetails, prefix: NodePath, root: type[BaseModel]) -> tuple[str, ...]:
    parts = (part for part in (*prefix, *detail["loc"]) if part not in UNION_TAGS)
    return keys_at(root, tuple(parts)[:-1])


def _explain_one(
    detail: ErrorDetails, document: Document, prefix: NodePath, root: type[BaseModel]
) -> Problem:
    raw = (*prefix, *detail["loc"])
    path = _node_path(raw, document, may_be_new=detail["type"] == "missing")
    kind = detail["type"]
    if kind == "extra_forbidden":
        # The key itself is there, so it is the key that is pointed at.
        return document.problem(document.at_key(path), unknown_key(path, root))
    if kind == "missing":
        return document.problem(document.at_key(path[:-1]), missing_key(path))
    text = f"{show_path(path)}: {_text(detail, path, form=raw[-1])}"
    mark = document.at_key(path) if raw[-1] == "[key]" else document.at_value(path)
    return document.problem(mark, text)


def _node_path(raw: NodePath, document: Document, *, may_be_new: bool) -> NodePath:
    """Drop the parts that pydantic adds for the chosen form of a union; they match no node."""
    path: NodePath = ()
    for index, part in enumerate(raw):
        here = (*path, part)
        is_new = may_be_new and index == len(raw) - 1
        if here in document.values or is_new or part not in _ADDED:
            path = here
    return path


def unknown_key(path: NodePath, root: type[BaseModel]) -> str:
    """Say that a key is unknown, and the nearest key there is or where it belongs."""
    key = str(path[-1])
    keys = keys_at(root, path[:-1])
    hint = did_you_mean(key, keys)
    if root is not ScenarioFile:
        return f"{show_path(path)}: unknown key{hint or _there_are(keys)}"
    if key in LEAVES and "." in key and path[0] != "matrix":
        section, _, rest = key.partition(".")
        return f"{show_path(path)}: unknown key; write {rest} below {section}, or use matrix"
    homes = [alias for alias, leaf in LEAVES.items() if leaf[-1] == key and len(leaf) > 1]
    if not hint and homes and path[0] != "matrix":
        hint = f"; it belongs at {' or '.join(homes)}"
    return f"{show_path(path)}: unknown key{hint or _there_are(keys)}"


def _there_are(keys: tuple[str, ...]) -> str:
    return f"; the keys here are {', '.join(keys)}" if 0 < len(keys) <= 25 else ""


def missing_key(path: NodePath) -> str:
    """Say that a key is missing."""
    return f"{show_path(path)}: missing key"


def keys_at(model: type[BaseModel], path: NodePath) -> tuple[str, ...]:
    """Return the keys a mapping at ``path`` may have, as written in a file."""
    current: type[BaseModel] | None = model
    for part in path:
        if isinstance(part, int) or current is None:
            continue
        by_key = {_alias(name, field): field for name, field in current.model_fields.items()}
        found = by_key.get(part)
        current = None if found is None else _model_in(found.annotation)
    if current is None:
        return ()
    return tuple(_alias(name, field) for name, field in current.model_fields.items())


def _alias(name: str, field: Any) -> str:
    return field.alias or name


def _model_in(hint: Any) -> type[BaseModel] | None:
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return hint
    return next(filter(None, map(_model_in, typing.get_args(hint))), None)


def _text(detail: ErrorDetails, path: NodePath, *, form: str | int) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    found = detail["input"]
    if kind in _TYPES:
        return f"expected {_TYPES[kind]}, found {show(found)}{_quote_hint(kind, found)}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"expected {words.format(context[name])}, found {show(found)}"
    if kind in ("literal_error", "enum"):
        other = "" if form != "word" else " or a number" if path[-1] == "rows" else " or a list"
        return _choice(context["expected"], found, other)
    if kind == "string_pattern_mismatch":
        named = next((p for p in reversed(path) if p in _PATTERNS), None)
        return f"expected {_PATTERNS.get(str(named), _WORD)}, found {show(found)}"
    if kind in ("too_short", "string_too_short"):
        return f"expected at least {context['min_length']}, found {show(found)}"
    if kind in ("too_long", "string_too_long"):
        return f"expected a length of at most {context['max_length']}, found {len(found)}"
    return detail["msg"].removeprefix("Value error, ")


def _choice(expected: str, found: Any, other: str) -> str:
    names = [name.strip("' ") for name in expected.replace(" or ", ", ").split(",")]
    hint = did_you_mean(found, names) if isinstance(found, str) else ""
    listed = f"one of {', '.join(names)}" if len(names) > 2 else " or ".join(names)
    return f"expected {listed}{other}, found {show(found)}{hint}"


def _quote_hint(kind: str, found: Any) -> str:
    if kind == "string_type" and isinstance(found, (int, float, bool)):
        return "; put it in quotes"
    if kind in ("int_type", "float_type") and isinstance(found, str) and found[:1].isdigit():
        return "; write it without quotes, underscores or units"
    if kind == "bool_type" and found in ("yes", "no", "on", "off"):
        return " (YAML 1.2 knows true and false only)"
    return ""


def show(value: Any) -> str:
    """Render a found value shortly, with its kind where that is what matters."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"'{value[:40]}'"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, dict):
        return "a mapping"
    return str(value)[:40]
