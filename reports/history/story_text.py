"""A night's story in plain lines, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from reports.escaping import markdown_code, markdown_text
from reports.history.story import Finding, Story
from reports.text import shorten, visible

_LONGEST = 400


def plain_lines(story: Story) -> Iterator[str]:
    """Return the story line by line; a quiet night is one line."""
    yield visible(story.headline)
    if story.quiet:
        return
    if story.reference is not None:
        yield f"compared with {visible(story.reference.folder)}" + _unlike(story)
    yield from (
        f"  environment moved: {visible(name)} {visible(old)} -> {visible(new)}"
        for name, (old, new) in story.moved.items()
    )
    for owner, findings in story.by_owner().items():
        yield f"likely owner: {owner}"
        yield from (f"  {_line(found)}" for found in findings)
    excused = [found for found in story.findings if found not in story.acting]
    yield from (f"excused: {_line(found)}" for found in excused)
    if story.night.partial:
        yield "not judged: " + shorten(", ".join(story.night.partial), _LONGEST)


def _unlike(story: Story) -> str:
    return "" if story.like_with_like else ", whose key differs: numbers are not held against it"


def _line(found: Finding) -> str:
    reason = f" [{found.ownership.reason}]"
    return shorten(f"{found.matter}: {found.scenario}: {found.text}{reason}", _LONGEST)


def render_story(story: Story) -> str:
    """Return the story as Markdown (GitHub and GitLab dialect)."""
    night = story.night
    lines = [
        f"# {markdown_text(night.name)}, {markdown_text(night.started_at[:16])}",
        "",
        f"**{markdown_text(story.headline)}**",
        "",
    ]
    if story.quiet:
        return "\n".join(lines)
    if story.reference is not None:
        compared = f"Compared with {markdown_code(story.reference.folder)}"
        lines += [f"{compared}{_unlike(story)}.", ""]
    if story.moved:
        lines += ["## Environment moved", "", "| what | before | tonight |", "|---|---|---|"]
        lines += [
            f"| {markdown_text(name)} | {markdown_text(old)} | {markdown_text(new)} |"
            for name, (old, new) in story.moved.items()
        ]
        lines.append("")
    for owner, findings in story.by_owner().items():
        lines += [f"## Likely owner: {owner}", "", *_table(findings), ""]
    excused = tuple(found for found in story.findings if found not in story.acting)
    if excused:
        lines += ["## In quarantine", "", *_table(excused), ""]
    if night.partial:
        lines += ["## Not judged", "", *(f"- {markdown_code(name)}" for name in night.partial), ""]
    if story.labels:
        counts = ", ".join(f"{number} {label}" for label, number in story.labels.items())
        lines += [f"Trends: {counts}.", ""]
    return "\n".join(lines).rstrip() + "\n"


def _table(findings: tuple[Finding, ...]) -> list[str]:
    rows = [
        f"| {markdown_text(found.matter)} | {markdown_code(found.scenario)} "
        f"| {markdown_text(shorten(found.text, _LONGEST))} "
        f"| {markdown_text(found.ownership.reason)} |"
        for found in findings
    ]
    return ["| what | scenario | found | why this owner |", "|---|---|---|---|", *rows]
