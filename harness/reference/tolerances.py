"""Tolerances of values, by name and dtype, each with its reason. Read from ``configs/tolerances``.

There is no default bound: a value without an entry is an error, so that no comparison runs with a
tolerance nobody chose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

DEFAULT_FILE = Path(__file__).resolve().parents[2] / "configs" / "tolerances" / "default.yaml"

_NUMBERS = (
    "atol",
    "rtol",
    "atol_of_max",
    "of_scale",
    "of_scale_sqrt_length",
    "of_scale_sqrt_partials",
)


class ToleranceError(ValueError):
    """A tolerance file, or a request for one of its entries, is wrong; the text names the place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """Bounds of one value in one dtype.

    Attributes:
        atol: Absolute bound.
        rtol: Bound as a part of the reference element's magnitude.
        atol_of_max: Absolute bound as a part of the greatest reference magnitude, for values whose
            scale depends on the inputs. Added to ``atol``.
        of_scale: Absolute bound as a part of the element's own error scale (``Expected.scale``).
        of_scale_sqrt_length: The same, times the square root of the terms added up.
        of_scale_sqrt_partials: The same, times the square root of the additions that a collective
            makes in the value's own format (one less than its partial sums).
        reason: What the bounds come from.
    """

    atol: float = 0.0
    rtol: float = 0.0
    atol_of_max: float = 0.0
    of_scale: float = 0.0
    of_scale_sqrt_length: float = 0.0
    of_scale_sqrt_partials: float = 0.0
    reason: str

    @property
    def needs_scale(self) -> bool:
        """True when a part of the bound is counted in the value's error scale."""
        return bool(self.of_scale or self.of_scale_sqrt_length or self.of_scale_sqrt_partials)

    def absolute(self, expected: Tensor) -> float:
        """Return the absolute bound for a reference value, a finite number.

        Raises:
            ToleranceError: when the bound needs an error scale.
        """
        if self.needs_scale:
            raise ToleranceError(
                "this tolerance is counted in the value's error scale, found a bare tensor; "
                "compare with compare_expected and an Expected"
            )
        return self.without_scale(expected)

    def without_scale(self, expected: Tensor) -> float:
        """Return the part of the absolute bound that needs no error scale, a finite number."""
        if not self.atol_of_max or not expected.numel():
            return self.atol
        greatest = float(expected.detach().abs().amax())
        return self.atol + (self.atol_of_max * greatest if math.isfinite(greatest) else 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerances:
    """The entries of one file.

    Attributes:
        source: File they were read from.
        entries: Value name to dtype (``bf16``, ``fp32``) to bounds.
    """

    source: Path
    entries: dict[str, dict[str, Tolerance]]

    def of(self, name: str, dtype: str) -> Tolerance:
        """Return the bounds of a value.

        ``grad.query`` falls back to ``grad``, its part before the first dot.

        Raises:
            ToleranceError: when the file has no entry for it.
        """
        by_dtype = self.entries.get(name) or self.entries.get(name.partition(".")[0]) or {}
        if dtype not in by_dtype:
            raise ToleranceError(
                f"{self.source}: no tolerance for {name!r} in {dtype}, found "
                f"{ {key: sorted(value) for key, value in self.entries.items()} }; add an entry "
                "with its reason"
            )
        return by_dtype[dtype]


def load_tolerances(path: Path = DEFAULT_FILE) -> Tolerances:
    """Read a tolerance file: ``name: {dtype: {<numbers of Tolerance>, reason}}``.

    Raises:
        ToleranceError: for unknown keys, numbers that are no bound, or a missing reason.
    """
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ToleranceError(f"{path}: cannot be read as YAML: {error}") from error
    entries = {
        name: {
            dtype: _tolerance(item, f"{path}: {name}.{dtype}")
            for dtype, item in _mapping(by_dtype, f"{path}: {name}").items()
        }
        for name, by_dtype in _mapping(document, str(path)).items()
    }
    return Tolerances(source=path, entries=entries)


def _mapping(data: Any, where: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise ToleranceError(f"{where}: expected a mapping, found {data!r}")
    return data


def _tolerance(data: Any, where: str) -> Tolerance:
    item = _mapping(data, where)
    if unknown := sorted(set(item) - {*_NUMBERS, "reason"}):
        raise ToleranceError(f"{where}: unknown key {unknown[0]!r}, expected {_NUMBERS} or reason")
    for name in _NUMBERS:
        value = item.get(name, 0.0)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and value >= 0):
            raise ToleranceError(
                f"{where}.{name}: expected a number of at least 0, found {value!r}"
            )
    reason = item.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise ToleranceError(f"{where}.reason: say in a sentence what the bounds come from")
    numbers = {name: float(item.get(name, 0.0)) for name in _NUMBERS}
    return Tolerance(**numbers, reason=reason)
