"""``report.html``: what needs action first, then totals, then every scenario with its evidence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from reports.actions import actions
from reports.collected import collected_tables
from reports.console import build_text
from reports.escaping import is_file, is_link
from reports.html.blocks import Block, anchor_of, full_block, short_block
from reports.proof import proof_lines
from reports.summary import Need, RunSummary, totals_line
from reports.tables import (
    environment_table,
    facts_table,
    not_run_table,
    outcome_table,
    published_table,
    release_tables,
    run_table,
)
from reports.text import ratio, seconds, visible, visible_lines

TEMPLATES = Path(__file__).parents[1] / "templates" / "html"

MAX_FULL_BYTES = 5_000_000
"""Scenarios are shown in full, most urgent first, until they fill this much."""
MAX_FULL_EXPECTED = 60
"""Most scenarios that are as expected and shown in full all the same."""
MAX_EXCERPT_LINES = 120


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Scenarios that need the reader equally, under one heading.

    Attributes:
        texts: Finished HTML of each scenario.
        num_short: How many of them are shown without their evidence.
    """

    title: str
    texts: tuple[Markup, ...]
    num_short: int


def render_html(summary: RunSummary) -> str:
    """Return the report of a run as one HTML page."""
    record = summary.record
    tables = (
        outcome_table(summary),
        not_run_table(summary),
        *release_tables(summary),
        published_table(summary),
    )
    return template("page.html.j2").render(
        summary=summary,
        record=record,
        title=_title(summary),
        totals=totals_line(summary),
        build=None if record is None else build_text(record.environment),
        actions=actions(summary),
        proof_lines=list(proof_lines(summary.proof)),
        tables=[table for table in tables if table.rows],
        collected=collected_tables(summary),
        facts=facts_table(summary.proof),
        run=None if record is None else run_table(record),
        environment=None if record is None else environment_table(record.environment),
        parts=list(_parts(summary)),
    )


_TITLES = {
    Need.FAULT: "Unexpected faults",
    Need.WRONG: "Unexpected verdicts",
    Need.FIXED: "Fixed known defects",
    Need.KNOWN: "Known defects",
    Need.NOT_RUN: "Not run",
    Need.EXPECTED: "As expected",
}


def _parts(summary: RunSummary) -> Iterator[Part]:
    """Render scenarios in order of need; the budget goes to those that need the reader most."""
    spent = 0
    for need, title in _TITLES.items():
        items = [item for item in summary.scenarios if item.need is need]
        texts = []
        num_short = 0
        for place, item in enumerate(items):
            full = spent < MAX_FULL_BYTES and (
                need is not Need.EXPECTED or place < MAX_FULL_EXPECTED
            )
            block = full_block(item, summary.folder) if full else short_block(item)
            text = _block_text(block, opened=need.acts and place == 0 and not spent)
            spent += len(text) if full else 0
            num_short += not full
            texts.append(text)
        if texts:
            yield Part(title=title, texts=tuple(texts), num_short=num_short)


def _block_text(block: Block, *, opened: bool) -> Markup:
    text = template("scenario.html.j2").render(b=block, opened=opened)
    # The template has escaped all foreign text.
    return Markup(text)  # noqa: S704


def _title(summary: RunSummary) -> str:
    if summary.record is not None:
        return summary.record.name
    return "without a readable run.json" if summary.folder is None else summary.folder.name


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        anchor=anchor_of, ratio=ratio, seconds=seconds, number=_number, lines=_lines, link=_link,
        file=_file_link,
    )  # fmt: skip
    return environment


@cache
def template(name: str) -> Template:
    """Return a template of the pages, with escaping on and the filters that it needs."""
    return _environment().get_template(name)


def _finalize(value: object) -> object:
    """Show hidden characters of foreign text as escapes; autoescape does the rest."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _number(value: float) -> str:
    """Return a coordinate with at most one decimal.

    >>> _number(3.0), _number(2.25)
    ('3', '2.2')
    """
    return f"{value:.1f}".removesuffix(".0")


def _lines(text: str) -> Markup:
    """Return text of many lines, the last ones of a long one."""
    lines = visible_lines(text.rstrip("\n"))
    if len(lines) > MAX_EXCERPT_LINES:
        lines = [f"... {len(lines) - MAX_EXCERPT_LINES} lines before", *lines[-MAX_EXCERPT_LINES:]]
    return escape("\n".join(lines))


def _link(text: str) -> Markup:
    """Return a plain https address as a link, any other text as it is."""
    shown = visible(text)
    if not is_link(text):
        return escape(shown)
    return Markup('<a href="{}" rel="noreferrer">{}</a>').format(text, shown)


def _file_link(path: str) -> Markup:
    """Return the relative path of a file of the run as a link; an odd one as text."""
    shown = visible(path)
    if not is_file(path):
        return Markup("<code>{}</code>").format(shown)
    return Markup('<a href="{}"><code>{}</code></a>').format(path, shown)
