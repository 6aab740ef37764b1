"""The editor schemas in ``configs``, generated from the pydantic models that check the files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from harness.scenario.files import PROJECT_ROOT
from harness.scenario.schema import ScenarioFile
from harness.scenario.suite_schema import SuiteFile

SCHEMA_PATH = PROJECT_ROOT / "configs" / "scenario.schema.json"
SUITE_SCHEMA_PATH = PROJECT_ROOT / "configs" / "suite.schema.json"


def schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file."""
    return _schema(ScenarioFile, "DSA harness scenario, version 1")


def suite_schema() -> dict[str, Any]:
    """Return the JSON schema of a suite file."""
    return _schema(SuiteFile, "DSA harness suite, version 1")


def _schema(model: type[BaseModel], title: str) -> dict[str, Any]:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **model.model_json_schema(by_alias=True),
        "title": title,
    }


def schema_text() -> str:
    """Return the schema of scenario files as it is kept in the repository."""
    return _text(schema())


def suite_schema_text() -> str:
    """Return the schema of suite files as it is kept in the repository."""
    return _text(suite_schema())


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def kept_schemas() -> dict[Path, str]:
    """Return the files that hold a schema and what they are to hold."""
    return {SCHEMA_PATH: schema_text(), SUITE_SCHEMA_PATH: suite_schema_text()}


def is_current(path: Path, text: str) -> bool:
    """Tell whether a kept schema is the generated one."""
    return path.is_file() and path.read_text(encoding="utf-8") == text


def write_schemas() -> tuple[Path, ...]:
    """Write the schemas and return their files."""
    for path, text in kept_schemas().items():
        path.write_text(text, encoding="utf-8")
    return tuple(kept_schemas())


if __name__ == "__main__":
    for written in write_schemas():
        sys.stdout.write(f"wrote {written}\n")
