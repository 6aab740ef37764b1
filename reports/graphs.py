"""CUDA-graph readiness: what was measured, what is predicted, and what nobody looked at."""

from __future__ import annotations

from harness.record.graphs import CAPTURED, FAILED, GraphEvidence
from reports.summary import RunSummary
from reports.table import Table, table
from reports.text import shorten

MEASURED, MODELLED, PREDICTED, UNMEASURED = "measured", "modelled", "predicted", "unmeasured"

_BACKENDS = ("none", "cudnn", "tilelang")
_MODES = ("local", "transformer_engine", "full_iteration")
_MODULES = ("attn", "mlp")


def readiness_table(summary: RunSummary) -> Table:
    """Backend, implementation and module against static and Dynamic CP; empty without evidence."""
    cells: dict[tuple[str, str, str, bool], list[str]] = {}
    for item in summary.scenarios:
        attempt = item.result.last
        modelled = attempt.proof.facts.get("source") == "modelled"
        for record in attempt.graphs:
            for module in record.modules or ("whole",):
                key = (record.backend, record.impl, module, record.dynamic_cp)
                cells.setdefault(key, []).append(_cell(record, modelled=modelled))
    rows = []
    for backend in _BACKENDS if cells else ():
        for mode in _MODES:
            for module in ("whole",) if mode == "full_iteration" else (*_MODULES, "whole"):
                found = [cells.get((backend, mode, module, dynamic)) for dynamic in (False, True)]
                rows.append((backend, mode, module, *(_shown(cell) for cell in found)))
    header = ("backend", "implementation", "module", "static CP", "Dynamic CP")
    return table("CUDA-graph readiness", header, rows, code=(1, 2), most=len(rows) or 1)


def _shown(cell: list[str] | None) -> str:
    return "; ".join(dict.fromkeys(cell)) if cell else UNMEASURED


def _cell(record: GraphEvidence, *, modelled: bool) -> str:
    """One cell: each part says how it is known."""
    built = "constructs" if record.constructs else "does not construct"
    built = f"{MEASURED}: {built}, warns {record.num_warned} of {record.warnings_due}"
    eager = f"{MODELLED if modelled else MEASURED}: eager forward {'ran' if record.eager else '-'}"
    if record.capture == CAPTURED:
        equal = sum(replay.equal for replay in record.replays)
        what = f"{MEASURED}: captured, {equal} of {len(record.replays)} replays equal"
    elif record.capture == FAILED:
        what = f"{MEASURED}: capture failed"
    elif record.constructs and record.impl != "none":
        lines = len({blocker.site for blocker in record.blockers})
        what = f"{PREDICTED}: capture stops at {lines} lines" if lines else f"{PREDICTED}: no line"
    else:
        what = f"capture {UNMEASURED}"
    return f"{built}; {eager}; {what}"


def warning_table(summary: RunSummary) -> Table:
    """What constructing each configuration said."""
    rows: dict[tuple[str, ...], None] = {}
    for item in summary.scenarios:
        for record in item.result.last.graphs:
            place = (item.result.id, record.impl)
            if record.refusal:
                rows[(*place, "raised", "-", "-", shorten(record.refusal, 200))] = None
            for warning in record.warnings:
                about = "yes" if warning.about_packed_dsa else "no"
                text = shorten(warning.text, 200)
                rows[(*place, warning.category, str(warning.count), about, text)] = None
            unseen = record.capture not in (CAPTURED, FAILED) and record.impl != "none"
            if unseen and record.reason:
                rows[(*place, "capture not_run", "-", "-", shorten(record.reason, 200))] = None
    header = ("scenario", "implementation", "what", "times", "about packed DSA", "text")
    return table("Construction under CUDA graphs", header, rows, code=(0, 1))


def blocker_table(summary: RunSummary) -> Table:
    """Lines at which a capture would stop, as eager forwards show them: predictions."""
    rows: dict[tuple[str, ...], None] = {}
    for item in summary.scenarios:
        for record in item.result.last.graphs:
            for blocker in record.blockers:
                line = f"{blocker.site} {blocker.function}"
                row = (item.result.id, blocker.operation, blocker.kind, line, blocker.phase)
                rows[row] = None
    header = ("scenario", "operation", "what", "line", "phase")
    return table("Capture blockers (predicted)", header, rows, code=(0, 1, 3))
