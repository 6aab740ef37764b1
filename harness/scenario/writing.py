"""Resolved scenarios written as files to read and edit: the one writer that all tools share.

What ``harness.scenario.dump`` gives is laid out as a person would: keys in the order of
``docs/scenarios.md``, defaults left out, short sections on one line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from harness.record.codec import to_jsonable
from harness.scenario.dump import file_form
from harness.scenario.model_files import ModelChoiceError, ModelLibrary
from harness.scenario.spec import ModelSpec, Scenario
from harness.scenario.yaml12 import plain_scalar

WIDTH = 100
"""Longest line, as far as there is a place to break it."""

_INDENT = "  "
_BLOCKS = frozenset({"microbatches", "source", "known", "published"})
"""Lists with one entry on each line."""
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./+@-]*(?::[A-Za-z0-9_./+@-]+)*")
"""Safe without quotes anywhere, links included."""
_LINE = re.compile(r"[A-Za-z][A-Za-z0-9_./+@,;()=<>' -]*[A-Za-z0-9_./+@;()=<>'-]")
"""Safe without quotes where no flow collection is open."""


def scenario_to_yaml(
    scenario: Scenario, *, comments: Iterable[str] = (), inline_model: bool = False
) -> str:
    """Return the text of a scenario file that loads as this scenario again.

    The id of one member of a matrix becomes a plain one, as in ``file_form``; nothing that is run
    changes, so that ``content_hash`` is the same.

    Args:
        scenario: Any resolved scenario.
        comments: Lines that stand above the scenario.
        inline_model: Writes all fields of the model, also where ``configs/models`` has it by name.
    """
    form = file_form(scenario)
    form["model"] = _inline(scenario.model) if inline_model else _model(scenario.model)
    lines = [f"# {part}".rstrip() for text in comments for part in text.splitlines() or [""]]
    for key, value in form.items():
        lines += _entry(key, value)
    return "\n".join(lines) + "\n"


def _model(model: ModelSpec) -> str | dict[str, Any]:
    """Return how a file says a model: by name, as changes to a named one, or in full."""
    library = ModelLibrary()
    named = model.name.removesuffix("+")
    try:
        base = library.get(named)
    except ModelChoiceError:
        return _inline(model)
    changes = _changes(model, base)
    if not changes:
        return named if model.name == named else {"base": named, "name": model.name}
    if model.name == named:
        return {"base": named, "name": model.name, **changes}
    return {"base": named, **changes}


def _inline(model: ModelSpec) -> dict[str, Any]:
    return {"name": model.name, **_changes(model, ModelSpec(name="inline"))}


def _changes(model: ModelSpec, base: ModelSpec) -> dict[str, Any]:
    found, there = to_jsonable(model), to_jsonable(base)
    return {key: found[key] for key in found if key != "name" and found[key] != there[key]}


def _entry(key: str, value: Any, indent: str = "") -> Iterator[str]:
    """Yield the lines of one key of a block mapping."""
    if key in _BLOCKS and isinstance(value, list) and value:
        yield f"{indent}{key}:"
        for item in value:
            yield from _item(item, indent + _INDENT)
        return
    text = _flow(value) if isinstance(value, (dict, list)) else _scalar(value, is_flow=False)
    line = f"{indent}{key}: {text}"
    if len(line) <= WIDTH or not value:
        yield line
    elif isinstance(value, dict):
        yield f"{indent}{key}:"
        for name, item in value.items():
            yield from _entry(name, item, indent + _INDENT)
    elif isinstance(value, list) and not any(isinstance(item, (dict, list)) for item in value):
        yield from _wrapped(f"{indent}{key}: [", value, indent + _INDENT)
    elif isinstance(value, list):
        yield f"{indent}{key}:"
        for item in value:
            yield from _item(item, indent + _INDENT)
    else:
        yield line


def _item(value: Any, indent: str) -> Iterator[str]:
    """Yield the lines of one entry of a block list."""
    line = f"{indent}- {_flow(value) if isinstance(value, (dict, list)) else _scalar(value)}"
    if not isinstance(value, dict) or not value:
        yield line
        return
    if len(value) > 1 and len(line) <= WIDTH:
        yield line
        return
    mark = f"{indent}- "
    for name, item in value.items():
        for entry in _entry(name, item, indent + _INDENT):
            yield mark + entry[len(mark) :] if mark.strip() else entry
            mark = " " * len(mark)


def _wrapped(start: str, values: list[Any], indent: str) -> Iterator[str]:
    line = start
    for number, value in enumerate(values):
        text = _scalar(value) + ("," if number + 1 < len(values) else "]")
        if len(line) + len(text) + 1 > WIDTH:
            yield line
            line = indent + text
        else:
            line += text if line == start else f" {text}"
    yield line


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: Any, *, is_flow: bool = True) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    plain = _WORD if is_flow else _LINE
    if (_WORD.fullmatch(value) or plain.fullmatch(value)) and plain_scalar(value) == value:
        return value
    return "".join(
        character if character.isprintable() else _escape(character)
        for character in json.dumps(value, ensure_ascii=False)
    )


def _escape(character: str) -> str:
    code = ord(character)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )
