"""Tables of a whole run as plain data, as the Markdown report shows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from harness.record.environment import Environment
from harness.record.result import RunRecord
from harness.record.selection import OverlapStats
from harness.record.verdict import Outcome
from reports.by_release import cell_text, families, short_names
from reports.injected import never_struck
from reports.proof import RunProof
from reports.summary import Need, RunSummary, ScenarioView, missing_text
from reports.table import Table, table
from reports.text import ratio, seconds

MAX_SELECTION_ROWS = 400
"""Longest table of scenarios that are as expected."""
MAX_FAMILIES = 8
"""Most families of scenarios side by side; more of them get a table of their own."""


def run_table(record: RunRecord) -> Table:
    """When and how the run was started, and how it ended."""
    rows = [
        ("started", record.started_at),
        ("finished", record.finished_at or "not finished"),
        ("ranks", f"{record.world_size} on {record.num_nodes} node(s)"),
        ("isolation", record.isolation),
        ("command", " ".join(record.command)),
        ("rerun", record.rerun),
    ]
    return table("Run", ("what", "value"), rows, code=(1,))


def environment_table(environment: Environment) -> Table:
    """Versions and devices; what is not installed is said to be so."""
    rows = []
    for field in fields(environment):
        value = getattr(environment, field.name)
        if field.name not in ("gpus", "variables"):
            shown = "not found" if value is None else str(value)
            rows.append((field.name, shown))
    for gpu in environment.gpus:
        memory = f"{gpu.memory_bytes / 2**30:.0f} GiB"
        rows.append(("gpu", f"{gpu.name}, {gpu.capability}, {memory}, {gpu.uuid}"))
    if not environment.gpus:
        rows.append(("gpu", "none"))
    rows += [(f"variable {name}", value) for name, value in environment.variables.items()]
    return Table(title="Environment", header=("what", "value"), rows=tuple(rows), code=(1,))


def facts_table(proof: RunProof) -> Table:
    """Facts that were probed of the build and the kernels."""
    return Table(
        title="Probed facts", header=("fact", "value"), rows=tuple(proof.facts.items()), code=(0,)
    )


def outcome_table(summary: RunSummary) -> Table:
    """Number of results per outcome and verdict."""
    rows = [
        (str(outcome), str(verdict), str(number))
        for (outcome, verdict), number in summary.verdicts.items()
    ]
    if summary.missing:
        rows.append(("no result", "-", str(len(summary.missing))))
    return table("Outcomes", ("outcome", "verdict", "scenarios"), rows)


def scenario_table(summary: RunSummary) -> Table:
    """One row for every scenario, most urgent first."""
    header = (
        "outcome", "verdict", "scenario", "plan", "kernels", "overlap", "strict", "time", "with",
    )  # fmt: skip
    rows = [_scenario_row(item) for item in summary.scenarios]
    return Table(title="Scenarios", header=header, rows=tuple(rows), code=(2,))


def _scenario_row(item: ScenarioView) -> tuple[str, ...]:
    result = item.result
    proof = result.last.proof
    extra = [f"overlay {name}" for name in proof.overlays]
    extra += [f"injected {name}" for name in proof.injected]
    extra += [f"never struck: {spared}"] if (spared := never_struck(result.last)) else []
    rank, strict = item.worst_rank, item.least_strict
    return (
        str(result.outcome),
        str(result.verdict),
        result.id,
        item.plan,
        item.kernels,
        "-" if rank is None else ratio(rank.overlap),
        "-" if strict is None else ratio(strict),
        seconds(item.duration_s),
        ", ".join(extra) or "-",
    )


def selection_table(summary: RunSummary) -> Table:
    """Overlap per ``cp_rank`` of the scenarios that have no block of their own."""
    rows = [
        (
            item.result.id,
            str(rank.cp_rank),
            ratio(rank.overlap),
            ratio(rank.strict),
            *_few(rank.total),
        )
        for item in summary.scenarios
        if item.need is Need.EXPECTED
        for rank in item.ranks
    ]
    header = ("scenario", "cp_rank", "overlap", "strict", "rows", "due", "exact", "tie")
    return table("Selection per cp_rank", header, rows, code=(0,), most=MAX_SELECTION_ROWS)


def _few(total: OverlapStats) -> tuple[str, ...]:
    return (str(total.rows), str(total.due), str(total.exact), str(total.tie))


def not_run_table(summary: RunSummary) -> Table:
    """Scenarios that did not run and what they miss."""
    rows = [
        (item.result.id, item.result.last.missing_capability or "-")
        for item in summary.scenarios
        if item.result.outcome is Outcome.NOT_RUN
    ]
    rows += [(name, missing_text(summary, name)) for name in summary.missing]
    return Table(title="Not run", header=("scenario", "missing"), rows=tuple(rows), code=(0,))


def release_tables(summary: RunSummary) -> tuple[Table, ...]:
    """Releases and architectures against families of scenarios; none for a single release."""
    names = families(summary.releases)
    return tuple(_release_tables(summary, names)) if names else ()


def _release_tables(summary: RunSummary, names: tuple[str, ...]) -> Iterator[Table]:
    short = short_names(names)
    for start in range(0, len(names), MAX_FAMILIES):
        part = names[start : start + MAX_FAMILIES]
        rows = [
            (row.release, row.arch, *(cell_text(row.cells.get(name)) for name in part))
            for row in summary.releases
        ]
        title = "By release" + (", further scenarios" if start else "")
        header = ("release", "arch", *(short[name] for name in part))
        yield table(title, header, rows, most=MAX_SELECTION_ROWS)


def published_table(summary: RunSummary) -> Table:
    """Figures that others published, beside the least overlap of this run."""
    rows = [
        (
            item.result.id,
            str(item.result.verdict),
            "-" if item.worst_rank is None else ratio(item.worst_rank.overlap),
            "-" if item.least_strict is None else ratio(item.least_strict),
            entry.what,
            entry.value,
            entry.link,
        )
        for item in summary.scenarios
        for entry in item.published
    ]
    header = ("scenario", "verdict", "overlap", "strict", "published", "value", "link")
    return table("Beside figures that others published", header, rows, code=(0,), links=(6,))
