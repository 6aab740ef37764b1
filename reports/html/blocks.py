"""One scenario as the page shows it: in full, or its sentences alone where there are thousands."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.record.files import safe_name
from reports.evidence_tables import evidence_tables
from reports.files import files_to_read, result_file
from reports.finding import Finding
from reports.findings import excerpts
from reports.html.drawing import Drawing
from reports.html.heat_figure import heat_drawings
from reports.html.layout_figure import layout_drawings
from reports.html.row_figure import row_drawing
from reports.html.timeline_figure import timeline_drawing
from reports.rank_tables import phase_table
from reports.summary import ScenarioView
from reports.table import Table

_MAX_STACK_BYTES = 16_384
"""How much of a stack file is shown; the rest is in the file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Details:
    """What a scenario is shown with when it is shown in full."""

    drawings: tuple[Drawing, ...]
    tables: tuple[Table, ...]
    excerpts: tuple[Finding, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A scenario for the template.

    Attributes:
        anchor: Fragment of its place in the page; stays the same from run to run.
        files: Files of the run to read, most telling first.
        details: None where the page would grow too large with them.
    """

    view: ScenarioView
    anchor: str
    files: tuple[str, ...]
    details: Details | None


def anchor_of(scenario_id: str) -> str:
    """Return the fragment of a scenario's place in the page."""
    return f"s-{safe_name(scenario_id)}"


def full_block(item: ScenarioView, folder: Path | None) -> Block:
    """Return a scenario with all its evidence."""
    result = item.result
    attempt = result.last
    drawings = (
        *layout_drawings(result),
        *heat_drawings(attempt.selections),
        row_drawing(attempt.selections),
        timeline_drawing(attempt),
    )
    files = files_to_read(result, folder)
    texts = list(excerpts(attempt))
    if item.need.acts:
        texts += _stacks(files, folder)
    return Block(
        view=item,
        anchor=anchor_of(result.id),
        files=files,
        details=Details(
            drawings=tuple(drawing for drawing in drawings if drawing is not None),
            tables=(*evidence_tables(item), *_some(phase_table(attempt))),
            excerpts=tuple(texts),
        ),
    )


def short_block(item: ScenarioView) -> Block:
    """Return a scenario with its sentences alone."""
    return Block(
        view=item,
        anchor=anchor_of(item.result.id),
        files=(result_file(item.result),),
        details=None,
    )


def _some(table: Table) -> tuple[Table, ...]:
    return (table,) if table.rows else ()


def _stacks(files: tuple[str, ...], folder: Path | None) -> list[Finding]:
    """Return the first faulty rank's stacks as they lie in the run folder."""
    found = [file for file in files if file.endswith(".stacks")]
    if folder is None or not found:
        return []
    try:
        with open(folder / found[0], "rb") as stream:
            text = stream.read(_MAX_STACK_BYTES).decode("utf-8", "replace")
    except OSError:
        return []
    return [Finding(label=f"stacks, {found[0]}", text=text)]
