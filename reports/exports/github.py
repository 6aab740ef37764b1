"""GitHub: a job summary and annotations at the scenario files.

The workflow commands are those of GitHub's documentation: ``::error file=,line=,title=::text``,
with percent, line breaks, and in properties also colon and comma, percent-encoded.
"""

from __future__ import annotations

from collections.abc import Iterator

from reports.markdown import render_markdown
from reports.summary import Need, RunSummary
from reports.text import shorten, visible

MAX_SUMMARY_BYTES = 1_000_000
"""GitHub refuses job summaries beyond 1 MiB."""
MAX_ANNOTATIONS = 10
"""GitHub shows ten errors and ten warnings of a step."""

_LEVEL = {
    Need.FAULT: "error",
    Need.WRONG: "error",
    Need.FIXED: "error",
    Need.KNOWN: "notice",
    Need.NOT_RUN: "notice",
}


def job_summary(summary: RunSummary) -> str:
    """Return the Markdown of a job summary, cut at a line where it would be refused."""
    text = render_markdown(summary)
    if len(text.encode()) <= MAX_SUMMARY_BYTES:
        return text
    head = text.encode()[:MAX_SUMMARY_BYTES].decode(errors="ignore").rpartition("\n")[0]
    return head + "\n\nThe rest was cut; `report.md` in the run folder holds it.\n"


def annotation_lines(summary: RunSummary) -> Iterator[str]:
    """Return workflow commands, those that need action first."""
    counts: dict[str, int] = {}
    for item in summary.scenarios:
        level = _LEVEL.get(item.need)
        if level is None or counts.get(level, 0) >= MAX_ANNOTATIONS:
            continue
        counts[level] = counts.get(level, 0) + 1
        result = item.result
        file, _, line = result.file.rpartition(":")
        if not line.isdigit():
            file, line = result.file, "1"
        title = shorten(f"{result.verdict} ({result.outcome}): {result.id}", 120)
        text = shorten(result.explanation or str(result.verdict), 300)
        place = f"file={_property(file)},line={line},title={_property(title)}"
        yield f"::{level} {place}::{_data(text)}"


def _data(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
