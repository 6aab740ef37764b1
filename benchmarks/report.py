"""Size and time of a run's documents with thousands of scenarios.

Run with ``python benchmarks/report.py [--scenarios 2000] [--failing 100]``. The results
are made by hand, with the evidence of four ranks each. The page is to take less than 5 seconds and
10 MB for 2,000 scenarios on one core of a current machine; reading the records is timed beside it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "reports")]

from sample_records import crash, passing, released_defect, write_run, wrong_selection  # noqa: E402

from harness.record.result import ScenarioResult  # noqa: E402
from reports.console import summary_text  # noqa: E402
from reports.render import DOCUMENTS  # noqa: E402
from reports.store import StoredRun, load_run  # noqa: E402
from reports.summary import RunSummary, summarise_stored  # noqa: E402


def results(number: int, failing: int) -> list[ScenarioResult]:
    """One in ten of those that do not fail shows a known defect."""
    bad = [crash, wrong_selection]
    good: list[Callable[[], ScenarioResult]] = [released_defect, *[passing] * 9]
    makers = [bad[n % 2] for n in range(failing)] + [good[n % 10] for n in range(number - failing)]
    return [replace(make(), id=f"suite/case-{n}[cp4]") for n, make in enumerate(makers)]


def measured(what: str, work: Callable[[], object]) -> object:
    """Do something and print its time, on the clock and on the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    found = work()
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    size = f"{len(found.encode()) / 1e6:8.2f} MB" if isinstance(found, str) else ""
    print(f"{what:<16} {clock:8.2f} s   {processor:8.2f} s processor {size}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scenarios", type=int, default=2000)
    parser.add_argument("--failing", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder), results(options.scenarios, options.failing))
        stored = measured("read", lambda: load_run(run))
        assert isinstance(stored, StoredRun)
        summary = measured("summarise", lambda: summarise_stored(stored))
        assert isinstance(summary, RunSummary)
        for name, render in {**DOCUMENTS, "console": summary_text}.items():
            measured(name, lambda render=render: render(summary))


if __name__ == "__main__":
    main()
