"""The schemas in ``configs/`` of run, result and summary files, for readers of other tools.

``python -m harness.record.generate`` writes them. This is the one module here that needs pydantic;
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
from harness.record.summary import SUMMARY_VERSION, RunSummaryDocument

SCHEMA_PATH = Path(__file__).resolve().parents[2] / "configs" / "record.schema.json"

SUMMARY_SCHEMA_PATH = SCHEMA_PATH.with_name("summary.schema.json")

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
    title = f"DSA harness records, version {SCHEMA_VERSION}"
    return _schema(_DOCUMENTS, title, {"schema_version": SCHEMA_VERSION})


def summary_schema() -> dict[str, Any]:
    """Return the JSON schema that ``summary.json`` meets."""
    title = f"DSA harness summary of a run, version {SUMMARY_VERSION}"
    return _schema((RunSummaryDocument,), title, {"summary_version": SUMMARY_VERSION})


def _schema(documents: tuple[type, ...], title: str, version: dict[str, int]) -> dict[str, Any]:
    inputs: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = [
        (cls.__name__, _MODE, TypeAdapter(cls)) for cls in documents
    ]
    by_name, definitions = TypeAdapter.json_schemas(inputs, schema_generator=_RecordSchema)
    defs: dict[str, Any] = definitions["$defs"]
    for cls in documents:
        for key, number in version.items():
            defs[cls.__name__]["properties"][key]["const"] = number
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "anyOf": [by_name[cls.__name__, _MODE] for cls in documents],
        "$defs": defs,
    }


def schema_text() -> str:
    """Return the schema as it is kept in the repository."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def summary_schema_text() -> str:
    """Return the schema of ``summary.json`` as it is kept in the repository."""
    return json.dumps(summary_schema(), indent=2, ensure_ascii=False) + "\n"


def is_current(path: Path = SCHEMA_PATH, text: str | None = None) -> bool:
    """Tell whether a kept schema is the generated one; by default that of the records."""
    wanted = schema_text() if text is None else text
    return path.is_file() and path.read_text(encoding="utf-8") == wanted


def main() -> None:
    """Write the schemas."""
    for path, text in (
        (SCHEMA_PATH, schema_text()),
        (SUMMARY_SCHEMA_PATH, summary_schema_text()),
    ):
        write_text(path, text)
        sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
