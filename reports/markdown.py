"""``report.md``: the whole run for a job summary, an issue or a merge request, without HTML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from reports.collected import collected_tables
from reports.escaping import finalize, markdown_code, markdown_fence, markdown_file, markdown_link
from reports.evidence_tables import evidence_tables
from reports.files import result_file
from reports.finding import Finding
from reports.findings import excerpts
from reports.proof import proof_lines
from reports.summary import Need, RunSummary, ScenarioView, totals_line
from reports.table import Table
from reports.tables import (
    environment_table,
    facts_table,
    not_run_table,
    outcome_table,
    published_table,
    release_tables,
    run_table,
    scenario_table,
    selection_table,
)

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A scenario with its evidence, as the template shows it.

    Attributes:
        file: Result file inside the run folder.
        excerpts: Texts of many lines with their titles: tracebacks.
    """

    view: ScenarioView
    file: str
    tables: tuple[Table, ...]
    excerpts: tuple[Finding, ...]


def render_markdown(summary: RunSummary) -> str:
    """Return the report of a run as Markdown (GitHub and GitLab dialect)."""
    record = summary.record
    text = _template().render(
        summary=summary,
        title=_title(summary),
        totals=totals_line(summary),
        proof_lines=list(proof_lines(summary.proof)),
        facts=facts_table(summary.proof),
        outcomes=outcome_table(summary),
        scenarios=scenario_table(summary),
        releases=release_tables(summary),
        published=published_table(summary),
        failing=[_block(item) for item in summary.failing],
        known=[_block(item) for item in summary.scenarios if item.need is Need.KNOWN],
        not_run=not_run_table(summary),
        selection=selection_table(summary),
        collected=collected_tables(summary),
        record=record,
        run=None if record is None else run_table(record),
        environment=None if record is None else environment_table(record.environment),
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@cache
def _template() -> Template:
    # Autoescape makes macros return finished text, so that `finalize` escapes everything once.
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = markdown_code
    environment.filters["fence"] = markdown_fence
    environment.filters["file"] = markdown_file
    environment.filters["link"] = markdown_link
    return environment.get_template("report.md.j2")


def _title(summary: RunSummary) -> str:
    if summary.record is not None:
        return summary.record.name
    return "without a readable run.json" if summary.folder is None else summary.folder.name


def _block(item: ScenarioView) -> Block:
    return Block(
        view=item,
        file=result_file(item.result),
        tables=evidence_tables(item),
        excerpts=excerpts(item.result.last),
    )
