"""All documents of a run, rebuilt from its record files alone."""

from __future__ import annotations

from pathlib import Path

from harness.record.files import write_text
from reports.markdown import render_markdown
from reports.store import load_run
from reports.summary import RunSummary, summarise_stored

MARKDOWN_FILE = "report.md"
"""Name of the Markdown report inside a run folder."""


def read_summary(run_dir: Path) -> RunSummary:
    """Read a run folder and compute what it needs said.

    Raises:
        RunFolderError: if there is no run at that path.
    """
    return summarise_stored(load_run(run_dir))


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
    path = run_dir / MARKDOWN_FILE
    write_text(path, render_markdown(summary))
    return [path]
