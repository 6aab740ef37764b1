"""A comparison in plain lines for a console or a log, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from reports.comparison.compare import Change, Comparison, ScenarioChange
from reports.escaping import markdown_code, markdown_text
from reports.text import counted, shorten, visible

_LONGEST = 300


def headline(comparison: Comparison) -> str:
    """Return one line: how many scenarios differ, and what moved."""
    flipped = sum(change.flipped for change in comparison.scenarios)
    parts = [
        f"{counted(len(comparison.scenarios), 'scenario')} behaved differently"
        + (f" ({flipped} flipped)" if flipped else ""),
        f"{comparison.num_same} alike",
    ]
    parts += [f"{len(comparison.only_before)} gone"] if comparison.only_before else []
    parts += [f"{len(comparison.only_after)} new"] if comparison.only_after else []
    moved = counted(len(comparison.environment), "thing")
    parts.append(f"{moved} moved in the environment")
    return "; ".join(parts)


def plain_lines(comparison: Comparison) -> Iterator[str]:
    """Return the comparison line by line; nothing of it obeys a terminal."""
    yield f"A {visible(comparison.before)}"
    yield f"B {visible(comparison.after)}"
    yield ""
    if comparison.environment:
        yield "environment moved"
        yield from (f"  {_line(change)}" for change in comparison.environment)
    else:
        yield "environment: the same in both"
    yield ""
    if comparison.scenarios:
        yield "behaviour moved"
    for scenario in comparison.scenarios:
        yield from _scenario_lines(scenario)
    for label, ids in (("A", comparison.only_before), ("B", comparison.only_after)):
        if ids:
            yield f"only in {label}"
            yield from (f"  {visible(name)}" for name in ids)
    yield headline(comparison)


def _scenario_lines(scenario: ScenarioChange) -> Iterator[str]:
    yield f"  {visible(scenario.id)}"
    yield from (f"    {_line(change)}" for change in scenario.behaviour)
    if scenario.environment:
        yield "    beside it moved: " + shorten(
            ", ".join(f"{c.item} {c.before} -> {c.after}" for c in scenario.environment), _LONGEST
        )


def _line(change: Change) -> str:
    text = f"{change.topic} {change.item}: {change.before} -> {change.after}"
    return shorten(text, _LONGEST)


def render_comparison(comparison: Comparison) -> str:
    """Return the comparison as Markdown (GitHub and GitLab dialect)."""
    lines = [
        f"# {markdown_text(comparison.before)} against {markdown_text(comparison.after)}",
        "",
        f"**{markdown_text(headline(comparison))}**",
        "",
        "## Environment moved",
        "",
        *_table(comparison.environment),
        "",
        "## Behaviour moved",
        "",
    ]
    if not comparison.scenarios:
        lines += ["Nothing.", ""]
    for scenario in comparison.scenarios:
        lines += [f"### {markdown_text(scenario.id)}", "", *_table(scenario.behaviour), ""]
        if scenario.environment:
            lines += ["Beside it moved:", "", *_table(scenario.environment), ""]
    for label, ids in (("A", comparison.only_before), ("B", comparison.only_after)):
        if ids:
            lines += [f"## Only in {label}", "", *(f"- {markdown_code(name)}" for name in ids), ""]
    return "\n".join(lines).strip() + "\n"


def _table(changes: tuple[Change, ...]) -> list[str]:
    if not changes:
        return ["Nothing."]
    rows = [
        f"| {markdown_text(c.topic)} | {markdown_text(c.item)} | {_cell(c.before)} "
        f"| {_cell(c.after)} |"
        for c in changes
    ]
    return ["| about | what | A | B |", "|---|---|---|---|", *rows]


def _cell(text: str) -> str:
    return markdown_text(shorten(text, _LONGEST))
