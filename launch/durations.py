"""Durations on the command line, such as ``60s``, ``5m`` or ``1.5h``."""

from __future__ import annotations

import re
from typing import Any

import click

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_PATTERN = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>s|m|min|h|)")


class Duration(click.ParamType[float]):
    """Seconds, written as a number with or without a unit."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a duration, or fail with what was expected."""
        if isinstance(value, (int, float)):
            return float(value)
        match = _PATTERN.fullmatch(str(value).strip())
        if match is None or float(match["number"]) <= 0:
            self.fail(f"expected a duration such as 60s, 5m or 1h, found {value!r}", param, ctx)
        return float(match["number"]) * _UNITS[match["unit"]]
