"""Tables of kernel and hook calls, and of values against their reference."""

from __future__ import annotations

import math
from collections.abc import Iterable

from harness.record.evidence import ValueEvidence
from harness.record.path import CallEvidence
from reports.table import Table, table
from reports.text import number_ranges, shorten


def call_table(calls: Iterable[CallEvidence]) -> Table:
    """Calls with the same tensors drawn together: what was called, from where, how often."""
    groups: dict[tuple[str, ...], list[CallEvidence]] = {}
    for call in calls:
        key = (call.symbol, call.origin, call.result, tensors_text(call), facts_text(call))
        groups.setdefault(key, []).append(call)
    rows = [
        (
            *key[:3],
            str(len(found)),
            number_ranges(call.microbatch for call in found),
            number_ranges(call.layer for call in found),
            *key[3:],
        )
        for key, found in groups.items()
    ]
    header = ("symbol", "kernel", "result", "times", "microbatch", "layer", "tensors", "facts")
    return table("Calls, as one rank's journal has them", header, rows, code=(0,))


def tensors_text(call: CallEvidence) -> str:
    """Return the tensors of a call, such as ``q bfloat16 [64, 32, 128]``."""
    parts = (f"{t.name} {t.dtype} {list(t.shape)}" for t in call.tensors)
    return shorten(", ".join(parts) or "-", 400)


def facts_text(call: CallEvidence) -> str:
    """Return the scalars of a call, such as ``top_k 16``."""
    return shorten(", ".join(f"{name} {value}" for name, value in call.facts.items()) or "-", 400)


def value_table(values: Iterable[ValueEvidence]) -> Table:
    """Values by name: the greatest differences of any rank and place, and what was allowed."""
    groups: dict[tuple[str, str], list[ValueEvidence]] = {}
    for value in values:
        groups.setdefault((value.name, value.reason), []).append(value)
    rows = [
        (
            name,
            f"{sum(not v.within for v in found)} of {len(found)}",
            f"{_greatest(v.max_abs_diff for v in found):.3g}",
            f"{_greatest(v.max_rel_diff for v in found):.3g}",
            f"{max(v.tolerance_abs for v in found):.3g}",
            f"{max(v.tolerance_rel for v in found):.3g}",
            reason,
        )
        for (name, reason), found in groups.items()
    ]
    header = (
        "value", "beyond tolerance", "greatest difference", "relative", "allowed",
        "relative allowed", "reason",
    )  # fmt: skip
    return table("Values against the reference", header, rows, code=(0,))


def _greatest(values: Iterable[float]) -> float:
    """Return the greatest value; NaN, which compares with nothing, counts as greater than all."""
    return max(values, key=lambda value: (math.isnan(value), value))
