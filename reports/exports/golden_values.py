"""Golden values as Megatron's functional tests keep them, read and written.

One JSON object per scenario: metric to ``start_step``, ``end_step``, ``step_interval`` and
``values`` (step, as text, to a number; "nan" as text where it is none). A step is one microbatch
under one seed, counted from 1 in the order in which they ran.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.record.result import ScenarioResult
from reports.comparison.digest import peak_memory_bytes
from reports.overlap import SHOWN_STAGE

LOSS_TOPIC = "language model loss"
"""Topic of the notes that hold ``<microbatch>: <loss>``."""
DETERMINISTIC, APPROXIMATE = 0.0, 0.05
"""Relative tolerance of Megatron's two kinds of check."""
MISSES = 0.01
"""Share of steps that may lie beyond it in an approximate check."""


class GoldenError(ValueError):
    """A file holds no golden values; the message says where and what was expected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """A metric that is not as it was; values are texts, so that NaN and absence can be shown."""

    metric: str
    step: str
    expected: str
    found: str


def golden_values(result: ScenarioResult) -> dict[str, Any]:
    """Return the golden values of a result."""
    series: dict[str, list[float]] = {"lm loss": _losses(result), "overlap": _overlaps(result)}
    peak = peak_memory_bytes(result.last)
    series["max-resident-bytes"] = [float(peak)] if peak else []
    return {name: _metric(values) for name, values in series.items() if values}


def _metric(values: list[float]) -> dict[str, Any]:
    return {
        "start_step": 1,
        "end_step": len(values),
        "step_interval": 1,
        "values": {str(step): _number(value) for step, value in enumerate(values, start=1)},
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else "nan"


def _losses(result: ScenarioResult) -> list[float]:
    """Mean losses in the order of the cases; every rank notes them all, rank after rank."""
    notes = [note for note in result.last.notes if note.topic == LOSS_TOPIC]
    per_rank = len(notes) // max(1, len(result.last.ranks))
    return [float(note.text.partition(":")[2]) for note in notes[:per_rank]]


def _overlaps(result: ScenarioResult) -> list[float]:
    cases: dict[tuple[int, int], float] = {}
    for item in result.last.selections:
        if item.stage == SHOWN_STAGE:
            key = (item.seed, item.microbatch)
            cases[key] = min(cases.get(key, 1.0), item.total.overlap)
    return [cases[key] for key in sorted(cases)]


def read_golden(path: Path) -> dict[str, dict[str, float]]:
    """Read golden values: metric to step to value.

    Raises:
        GoldenError: if the file cannot be read as such.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise GoldenError(f"{path}: expected a JSON file of golden values: {error}") from error
    if not isinstance(data, dict):
        raise GoldenError(f"{path}: expected an object of metrics, found {type(data).__name__}")
    found: dict[str, dict[str, float]] = {}
    for name, metric in data.items():
        values = metric.get("values") if isinstance(metric, dict) else None
        if not isinstance(values, dict):
            raise GoldenError(f"{path}: {name}: expected `values`, a map of steps to numbers")
        try:
            found[name] = {str(step): float(value) for step, value in values.items()}
        except (TypeError, ValueError) as error:
            raise GoldenError(f"{path}: {name}: expected numbers: {error}") from error
    return found


def mismatches(
    golden: dict[str, dict[str, float]], result: ScenarioResult, *, tolerance: float = APPROXIMATE
) -> tuple[Mismatch, ...]:
    """Hold a result against golden values; metrics that only one side has are left alone.

    Args:
        golden: From ``read_golden``.
        result: The result.
        tolerance: Relative; with one above zero, a share ``MISSES`` of the steps may miss it.
    """
    ours = {name: metric["values"] for name, metric in golden_values(result).items()}
    found: list[Mismatch] = []
    for name in golden.keys() & ours.keys():
        wrong = []
        for step, expected in golden[name].items():
            got = ours[name].get(step)
            if got is None or not _close(expected, float(got), tolerance):
                shown = "absent" if got is None else str(got)
                wrong.append(Mismatch(metric=name, step=step, expected=str(expected), found=shown))
        allowed = MISSES * len(golden[name]) if tolerance > 0.0 else 0.0
        found += wrong if len(wrong) > allowed else []
    return tuple(found)


def _close(expected: float, found: float, tolerance: float) -> bool:
    if math.isnan(expected) or math.isnan(found):
        return math.isnan(expected) and math.isnan(found)
    return math.isclose(expected, found, rel_tol=tolerance, abs_tol=0.0)
