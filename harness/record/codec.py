"""JSON both ways for frozen dataclasses, driven by their annotations.

Non-finite floats are written as the strings "nan", "inf" and "-inf", because JSON has no spelling
for them and a silent null would turn a NaN score into a missing one.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from reprlib import repr as shown
from typing import Any

_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class DecodeError(ValueError):
    """A JSON document does not have the shape of the record type it is read as."""


def to_jsonable(value: Any) -> Any:
    """Turn a record (dataclasses, enums, tuples, mappings, scalars) into JSON-ready data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, Mapping):
        return {str(key): to_jsonable(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, frozenset, set)):
        return [to_jsonable(item) for item in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form; records hold plain data only")


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Serialise a record to JSON text with stable key order as declared."""
    return json.dumps(to_jsonable(value), indent=indent, ensure_ascii=False, allow_nan=False)


def from_jsonable[T](cls: type[T], data: Any, *, where: str = "$") -> T:
    """Rebuild a record of type ``cls`` from JSON-ready data.

    Unknown keys are refused, missing keys take the field's default.

    Raises:
        DecodeError: naming the JSON path at which the data does not fit ``cls``.
    """
    return typing.cast(T, _decode(cls, data, where))


def fields_from_jsonable(cls: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Rebuild some fields of a record of type ``cls``, the others left out.

    Raises:
        DecodeError: naming the JSON path at which the data does not fit ``cls``.
    """
    hints = _hints(cls)
    if unknown := sorted(data.keys() - _names(cls)):
        raise DecodeError(f"$: {cls.__name__} has no field {unknown[0]!r}")
    return {key: _decode(hints[key], value, f"$.{key}") for key, value in data.items()}


def loads[T](cls: type[T], text: str) -> T:
    """Read a record of type ``cls`` from JSON text."""
    return from_jsonable(cls, json.loads(text))


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def learn(cls: type) -> None:
    """Resolve the type hints of a record and of all records in it, so that reading one is quick."""
    due, seen = [cls], {cls}
    while due:
        for hint in _hints(due.pop()).values():
            new = {found for found in _records_in(hint) if found not in seen}
            due += new
            seen |= new


def _records_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for part in typing.get_args(hint):
        yield from _records_in(part)


_PLAIN = frozenset({int, str, bool, float})
"""Types that JSON data may have already; most values do, and need no further look."""


@functools.cache
def _names(cls: type) -> frozenset[str]:
    return frozenset(field.name for field in dataclasses.fields(cls))


@functools.cache
def _taken_apart(hint: Any) -> tuple[bool, Any, tuple[Any, ...]]:
    """Return whether a hint is a record, its origin and its arguments."""
    is_record = dataclasses.is_dataclass(hint) and isinstance(hint, type)
    return is_record, typing.get_origin(hint), typing.get_args(hint)


def _decode(hint: Any, data: Any, where: str) -> Any:
    if type(data) is hint and hint in _PLAIN:
        return data
    is_record, origin, args = _taken_apart(hint)
    if is_record:
        return _decode_dataclass(hint, data, where)
    if origin is None:
        return _decode_scalar(hint, data, where)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(args, data, where)
    if origin is typing.Literal:
        if data not in args:
            raise DecodeError(f"{where}: expected one of {args}, found {shown(data)}")
        return data
    return _decode_container(origin, args, data, where)


def _decode_dataclass(cls: type, data: Any, where: str) -> Any:
    if not isinstance(data, dict):
        raise DecodeError(f"{where}: expected an object for {cls.__name__}, found {shown(data)}")
    hints = _hints(cls)
    if unknown := sorted(data.keys() - _names(cls)):
        raise DecodeError(f"{where}: {cls.__name__} has no field {unknown[0]!r}")
    kwargs = {}
    for key, item in data.items():
        hint = hints[key]
        # Most values are plain already; the place of one is only spelled out where it is needed.
        plain = type(item) is hint and hint in _PLAIN
        kwargs[key] = item if plain else _decode(hint, item, f"{where}.{key}")
    try:
        return cls(**kwargs)
    except (TypeError, ValueError) as error:
        raise DecodeError(f"{where}: {error}") from error


def _decode_union(options: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None and type(None) in options:
        return None
    errors = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _decode(option, data, where)
        except DecodeError as error:
            errors.append(str(error))
    raise DecodeError("; ".join(errors))


def _decode_container(origin: Any, args: tuple[Any, ...], data: Any, where: str) -> Any:
    if origin is tuple:
        if not isinstance(data, list):
            raise DecodeError(f"{where}: expected a list, found {shown(data)}")
        if len(args) == 2 and args[1] is Ellipsis:
            if args[0] in _PLAIN and all(type(x) is args[0] for x in data):
                return tuple(data)
            return tuple(_decode(args[0], x, f"{where}[{i}]") for i, x in enumerate(data))
        if len(args) != len(data):
            raise DecodeError(f"{where}: expected {len(args)} items, found {len(data)}")
        pairs = enumerate(zip(args, data, strict=True))
        return tuple(_decode(arg, item, f"{where}[{i}]") for i, (arg, item) in pairs)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        if not isinstance(data, dict):
            raise DecodeError(f"{where}: expected an object, found {shown(data)}")
        return {k: _decode(args[1], v, f"{where}.{k}") for k, v in data.items()}
    raise DecodeError(f"{where}: records do not use {origin}")


def _decode_scalar(hint: Any, data: Any, where: str) -> Any:
    if hint is Any or hint is object:
        return data
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        try:
            return hint(data)
        except ValueError as error:
            raise DecodeError(f"{where}: {error}") from error
    if hint is float:
        if isinstance(data, str) and data in _NON_FINITE:
            return _NON_FINITE[data]
        if isinstance(data, (int, float)) and not isinstance(data, bool):
            return _as_float(data, where)
    if hint is int and isinstance(data, int) and not isinstance(data, bool):
        return data
    if hint in (bool, str) and isinstance(data, hint):
        return data
    raise DecodeError(f"{where}: expected {getattr(hint, '__name__', hint)}, found {shown(data)}")


def _as_float(data: int | float, where: str) -> float:
    try:
        return float(data)
    except OverflowError as error:
        raise DecodeError(f"{where}: {error}") from error
