"""All documents of a run, rebuilt from its record files alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from harness.record.files import write_text
from reports.html.page import render_html
from reports.junit import render_junit
from reports.machine import summary_text
from reports.markdown import render_markdown
from reports.store import load_run
from reports.summary import RunSummary, summarise_stored

MARKDOWN_FILE = "report.md"
"""Name of the Markdown report inside a run folder."""
SUMMARY_FILE = "summary.json"
"""Name of the summary for scripts."""
HTML_FILE = "report.html"
"""Name of the page inside a run folder."""
JUNIT_FILE = "junit.xml"
"""Name of the report for CI servers."""

DOCUMENTS: dict[str, Callable[[RunSummary], str]] = {
    MARKDOWN_FILE: render_markdown,
    JUNIT_FILE: render_junit,
    HTML_FILE: render_html,
    SUMMARY_FILE: lambda summary: summary_text(summary, (MARKDOWN_FILE, HTML_FILE, JUNIT_FILE)),
}
"""Documents of a run: file name to what makes its text."""
FORMATS = {
    "markdown": MARKDOWN_FILE, "junit": JUNIT_FILE, "html": HTML_FILE, "json": SUMMARY_FILE,
}  # fmt: skip
"""Name of a format on the command line to its document."""


def read_summary(run_dir: Path, against: Path | None = None) -> RunSummary:
    """Read a run folder and compute what it needs said.

    Args:
        run_dir: The run folder.
        against: Folder of an earlier run; what changed since is something to act on.

    Raises:
        RunFolderError: if there is no run at one of the paths.
    """
    run = load_run(run_dir)
    if against is None:
        return summarise_stored(run)
    # Most runs are compared with none.
    from reports.changes import changes_against

    return summarise_stored(run, changes_against(load_run(against), run))


def write_all(run_dir: Path) -> list[Path]:
    """Write every document of a run into its folder and return their paths.

    Raises:
        RunFolderError: if there is no run at that path.
        OSError: if the folder cannot be written to.
    """
    return write_documents(read_summary(run_dir), run_dir)


def write_documents(summary: RunSummary, run_dir: Path) -> list[Path]:
    """Write every document of an already read run.

    Raises:
        OSError: if the folder cannot be written to.
    """
    paths = []
    for name, render in DOCUMENTS.items():
        write_text(run_dir / name, render(summary))
        paths.append(run_dir / name)
    return paths
