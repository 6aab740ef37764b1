"""The editor schema ``configs/scenario.schema.json``, generated from the pydantic models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.scenario.files import PROJECT_ROOT
from harness.scenario.schema import ScenarioFile

SCHEMA_PATH = PROJECT_ROOT / "configs" / "scenario.schema.json"


def schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **ScenarioFile.model_json_schema(by_alias=True),
        "title": "DSA harness scenario, version 1",
    }


def schema_text() -> str:
    """Return the schema as it is kept in the repository."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def is_current(path: Path = SCHEMA_PATH) -> bool:
    """Tell whether the kept schema is the generated one."""
    return path.is_file() and path.read_text(encoding="utf-8") == schema_text()
