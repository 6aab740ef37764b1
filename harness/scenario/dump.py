"""Resolved scenarios back to the file format, for bundles, minimised cases and round trips."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import MISSING, fields
from typing import Any

from harness.record.codec import to_jsonable
from harness.scenario.spec import Scenario


def file_form(scenario: Scenario) -> dict[str, Any]:
    """Return the mapping that a scenario file for this scenario holds, defaults left out.

    The id keeps no trace of a matrix, see ``plain_id``.
    """
    data = _without_defaults(scenario)
    data["id"] = plain_id(scenario.id)
    data["model"] = to_jsonable(scenario.model)
    for rule in data.get("known", []):
        if "behaviour" in rule:
            rule["as"] = rule.pop("behaviour")
    return data


MAX_ID = 120
"""Longest id of a scenario file."""


def plain_id(name: str) -> str:
    """Return an id that a file may have: ``family[cp4]`` becomes ``family-cp4``.

    Brackets and the signs between the values of a matrix are for expanded names. One that is too
    long ends in a short hash instead.
    """
    plain = re.sub(r"[^A-Za-z0-9._/-]", "-", name.replace("]", ""))
    if len(plain) <= MAX_ID:
        return plain
    return f"{plain[: MAX_ID - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def file_text(scenario: Scenario) -> str:
    """Return the text of a scenario file: JSON, which is YAML as well."""
    return json.dumps(file_form(scenario), indent=2, ensure_ascii=False) + "\n"


def _without_defaults(value: Any) -> dict[str, Any]:
    kept = {}
    for item in fields(value):
        found = getattr(value, item.name)
        default = item.default if item.default_factory is MISSING else item.default_factory()
        if found != default:
            kept[item.name] = _plain(found)
    return kept


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return (
        _without_defaults(value) if hasattr(value, "__dataclass_fields__") else to_jsonable(value)
    )
