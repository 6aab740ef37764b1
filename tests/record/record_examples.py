"""One example of every record type, each field filled, made from the annotations."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import pkgutil
import types
import typing
from typing import Any

import harness.record
from harness.record import result
from harness.record.certificate import CaseState, CertifiedCase
from harness.record.deviation import Deviation
from harness.record.result import Attempt, FaultReport, ScenarioResult
from harness.record.verdict import Outcome, Verdict


def record_types() -> list[type]:
    """All dataclasses of the record modules."""
    names = [module.name for module in pkgutil.iter_modules(harness.record.__path__)]
    found = [
        cls
        for module in [importlib.import_module(f"harness.record.{name}") for name in names]
        for cls in vars(module).values()
        if isinstance(cls, type) and dataclasses.is_dataclass(cls)
    ]
    return list(dict.fromkeys(found))


def example(cls: type, **changes: object) -> Any:
    """Return an instance of a record type with every field filled, consistent in itself."""
    hints = typing.get_type_hints(cls)
    values = {
        field.name: _value(hints[field.name], field.name) for field in dataclasses.fields(cls)
    }
    values |= _consistent(cls) | changes
    return cls(**values)


def _consistent(cls: type) -> dict[str, object]:
    if cls is Attempt:
        return {
            "verdict": Verdict.CRASH,
            "secondary": (Verdict.WRONG_PATH,),
            "fault": example(FaultReport),
            "missing_capability": None,
        }
    if cls is CertifiedCase:
        return {"state": CaseState.DIFFERS}
    if cls is Deviation:
        return {"kind": "plan"}
    if cls is ScenarioResult:
        return {
            "schema_version": result.SCHEMA_VERSION,
            "outcome": Outcome.UNEXPECTED,
            "scenario": {"id": "a", "list": [1, None]},
        }
    if "schema_version" in typing.get_type_hints(cls):
        return {"schema_version": result.SCHEMA_VERSION}
    return {}


def _value(hint: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return example(hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _value(next(arg for arg in args if arg is not type(None)), name)
    if origin is tuple:
        return tuple(_value(arg, name) for arg in args if arg is not Ellipsis)
    if origin is dict:
        return {f"{name} key": _value(args[1], name)}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return next(iter(hint))
    if hint is bool:
        return True
    return {int: 7, float: 0.5, str: f'{name} "é" \\ \u2028', object: "thing"}[hint]
