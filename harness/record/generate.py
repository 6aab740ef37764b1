"""The schema ``configs/record.schema.json`` of run and result files, for readers of other tools.

``python -m harness.record.generate`` writes it. This is the one module here that needs pydantic;
nothing that reads or writes records imports it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from harness.record.files import write_text
from harness.record.result import SCHEMA_VERSION, RunRecord, ScenarioResult

SCHEMA_PATH = Path(__file__).resolve().parents[2] / "configs" / "record.schema.json"

_MODE: Literal["validation"] = "validation"
_DOCUMENTS = (RunRecord, ScenarioResult)


class _RecordSchema(GenerateJsonSchema):
    """JSON schema that follows ``harness.record.codec`` where it differs from pydantic's habits."""

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        """Allow the spellings of non-finite floats."""
        return {"anyOf": [super().float_schema(schema), {"enum": ["nan", "inf", "-inf"]}]}

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        """Refuse unknown keys, as the codec does."""
        return {**super().dataclass_schema(schema), "additionalProperties": False}

    def tuple_schema(self, schema: core_schema.TupleSchema) -> JsonSchemaValue:
        """Write fixed tuples of one item type without ``prefixItems``, which older tools lack."""
        plain = super().tuple_schema(schema)
        items = plain.pop("prefixItems", None)
        if items:
            assert all(item == items[0] for item in items), f"mixed tuple {items} needs prefixItems"
            plain["items"] = items[0]
        return plain


def schema() -> dict[str, Any]:
    """Return the JSON schema that ``run.json`` and every file under ``results/`` meet."""
    inputs: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
        (cls.__name__, _MODE, TypeAdapter(cls)) for cls in _DOCUMENTS
    ]
    by_name, definitions = TypeAdapter.json_schemas(inputs, schema_generator=_RecordSchema)
    defs: dict[str, Any] = definitions["$defs"]
    for cls in _DOCUMENTS:
        defs[cls.__name__]["properties"]["schema_version"]["const"] = SCHEMA_VERSION
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"DSA harness records, version {SCHEMA_VERSION}",
        "anyOf": [by_name[cls.__name__, _MODE] for cls in _DOCUMENTS],
        "$defs": defs,
    }


def schema_text() -> str:
    """Return the schema as it is kept in the repository."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def is_current(path: Path = SCHEMA_PATH) -> bool:
    """Tell whether the kept schema is the generated one."""
    return path.is_file() and path.read_text(encoding="utf-8") == schema_text()


def main() -> None:
    """Write the schema."""
    write_text(SCHEMA_PATH, schema_text())
    sys.stdout.write(f"wrote {SCHEMA_PATH}\n")


if __name__ == "__main__":
    main()
