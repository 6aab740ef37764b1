"""Validate the top-level keys of a file one by one, and keep as much of a faulty one as is sound.

A rule across fields must run although something else in the file is wrong, and must not run on a
default that only stands there because the key meant for it was mistyped. So what is wrong is cut
out of its section, and remembered as unusable together with the key it was probably meant for.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from harness.scenario.fields import UNION_TAGS
from harness.scenario.matrix_schema import LEAVES
from harness.scenario.messages import explain, keys_at, missing_key, unknown_key
from harness.scenario.names import nearest
from harness.scenario.problems import NodePath, Problem
from harness.scenario.schema import REQUIRED, ScenarioFile, key_adapter
from harness.scenario.yaml12 import Document

_AS_GIVEN = ("model", "matrix")
"""Keys whose defaults are filled in later, or never."""
_INDIVISIBLE = (("model", "base"),)
"""Parts without which the rest of their section means something else."""


@dataclass(kw_only=True, slots=True)
class Reading:
    """The keys of one file.

    Attributes:
        sections: Top-level keys as JSON-ready data, faulty parts left out.
        unusable: Paths that are missing, faulty, or probably meant by an unknown key.
    """

    sections: dict[str, Any] = field(default_factory=dict)
    unusable: set[NodePath] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)


def read_keys(document: Document) -> Reading:
    """Validate every top-level key of a document whose data is a mapping."""
    reading = Reading()
    for key, value in document.data.items():
        if key in ScenarioFile.model_fields:
            _read_key(reading, document, key, value)
            continue
        mark = document.at_key((key,))
        reading.problems.append(document.problem(mark, unknown_key((key,), ScenarioFile)))
        reading.unusable |= set(_meant_at_the_top(key)) - {(given,) for given in document.data}
    for key in REQUIRED:
        if key in document.data:
            continue
        if (key,) not in reading.unusable:
            reading.problems.append(document.problem(document.at_key(()), missing_key((key,))))
        reading.unusable.add((key,))
    return reading


def _meant_at_the_top(key: str) -> Iterator[NodePath]:
    if section := nearest(key, ScenarioFile.model_fields):
        yield (section,)
    for alias, path in LEAVES.items():
        if key in (alias, path[-1]):
            yield path


_PLACEHOLDERS = {("microbatches", "sequences"): (1,)}
"""Stand-ins for a faulty key without which the other entries of its list could not be read. The key
counts as unusable all the same, so that no rule looks at the stand-in."""


def _read_key(reading: Reading, document: Document, key: str, value: Any) -> None:
    try:
        valid = key_adapter(key).validate_python(value)
    except ValidationError as error:
        reading.problems += explain(error, document, (key,))
        if key == "matrix":
            reading.unusable |= set(named_in_matrix(value))
            return
        rest, cut = _without_faults(key, value, error)
        try:
            valid = key_adapter(key).validate_python(rest)
        except ValidationError:
            reading.unusable.add((key,))
            return
        reading.unusable |= cut
        if cut.intersection(_INDIVISIBLE):
            reading.unusable.add((key,))
    reading.sections[key] = _plain(key, valid)


def named_in_matrix(value: Any) -> Iterator[NodePath]:
    """Yield the paths that a matrix with errors was to set, in any of its parts."""
    if not isinstance(value, dict):
        return
    parts = [value.get("include"), value.get("exclude")]
    entries = [entry for part in parts if isinstance(part, list) for entry in part]
    for mapping in [value, *entries]:
        for alias in mapping if isinstance(mapping, dict) else ():
            meant = alias if alias in LEAVES else nearest(alias, LEAVES)
            if meant is not None:
                yield LEAVES[meant]


def _without_faults(key: str, value: Any, error: ValidationError) -> tuple[Any, set[NodePath]]:
    """Return a copy of a section without the faulty keys of its mappings, and their paths.

    Entries of a list are never cut out, as the others would move.
    """
    rest = copy.deepcopy(value)
    cut: set[NodePath] = set()
    for detail in error.errors(include_url=False, include_context=False):
        loc = [part for part in detail["loc"] if part not in UNION_TAGS]
        node: Any = rest
        path: NodePath = (key,)
        while loc and (child := _mapping_below(node, loc[0])) is not None:
            node, path, loc = child, (*path, loc[0]), loc[1:]
        if not loc or not isinstance(node, dict):
            continue
        name = str(loc[0])
        node.pop(name, None)
        if (key, name) in _PLACEHOLDERS:
            node[name] = list(_PLACEHOLDERS[key, name])
        cut.add((*path, name))
        if detail["type"] == "extra_forbidden":
            meant = nearest(name, keys_at(ScenarioFile, path))
            if meant is not None and meant not in node:
                cut.add((*path, meant))
    return rest, cut


def _mapping_below(node: Any, part: str | int) -> dict[str, Any] | list[Any] | None:
    """Return an entry that is a mapping or a list of mappings, None for anything else."""
    if isinstance(node, dict):
        child = node.get(str(part))
    elif isinstance(node, list) and isinstance(part, int) and part < len(node):
        child = node[part]
    else:
        return None
    if isinstance(child, list):
        return child if any(isinstance(entry, dict) for entry in child) else None
    return child if isinstance(child, dict) else None


def _plain(key: str, valid: Any) -> Any:
    """Turn a validated key into the data that the dataclasses of ``spec`` are read from."""
    data = key_adapter(key).dump_python(
        valid, mode="json", exclude_unset=key in _AS_GIVEN, by_alias=key == "matrix"
    )
    if key == "known":
        for rule in data:
            rule["when"] = {name: want for name, want in rule["when"].items() if want is not None}
    return data
