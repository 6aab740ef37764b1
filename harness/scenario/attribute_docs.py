"""Descriptions of fields for the JSON schema: the docstrings that stand below them."""

from __future__ import annotations

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent
from typing import Any

from pydantic import BaseModel


def describe(section: type[BaseModel], properties: dict[str, Any]) -> None:
    """Give the properties of a section the texts below its fields as descriptions.

    Pydantic does the same with ``use_attribute_docstrings``, but whenever a class is defined: it
    reads the source of each module for a schema that few commands want.

    Args:
        section: A class of the scenario file.
        properties: Its properties in the JSON schema, by their names in the file; filled in.
    """
    texts = _docstrings(section)
    for name, field in section.model_fields.items():
        written = properties.get(field.alias or name)
        if written is not None and name in texts:
            written.setdefault("description", texts[name])


def _docstrings(section: type) -> dict[str, str]:
    """Return the docstrings of fields by name, those of base classes included."""
    found: dict[str, str] = {}
    for base in reversed(section.__mro__):
        if base.__module__.startswith("harness."):
            found.update(_in_source(base))
    return found


@cache
def _in_source(section: type) -> dict[str, str]:
    """Return the texts that stand directly below the annotated names of one class."""
    try:
        source = dedent(inspect.getsource(section))
    except OSError:  # a class that code made from others, such as those of a matrix
        return {}
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(below.value.value)
        for field, below in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }
