"""What a search leaves: the found case as a scenario file, its record, and a page to read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.record.codec import to_jsonable
from harness.record.ending import results_code
from harness.record.files import result_path, write_record, write_text
from harness.record.result import ScenarioResult
from harness.record.verdict import ExitCode
from harness.repro.search import Found, SearchReport
from harness.repro.search_histories import expecting
from harness.scenario.dump import plain_id
from harness.scenario.spec import Scenario
from harness.scenario.writing import scenario_to_yaml

FOUND_FILE = "found.yaml"
SEARCH_FILE = "search.json"
REPORT_FILE = "report.md"

_ENDINGS = {
    "found": "an unexpected verdict",
    "budget": "the budget is used up",
    "histories": "as many histories as asked for",
    "stopped": "a signal",
    "exhausted": "there are no other histories in these ranges",
}


def search_exit_code(report: SearchReport) -> ExitCode:
    """Return the exit code of a search that came to an end of its own."""
    if report.found is not None:
        return results_code([report.found.result])
    ran = any(not name.startswith("not_run") for name in report.counts)
    return ExitCode.OK if ran else ExitCode.NOTHING_RAN


def named(found: Found, seed: int) -> Scenario:
    """Return the found case under an id of its own."""
    scenario = expecting(found.scenario, found.signature.verdict)
    return replace(
        scenario,
        id=plain_id(f"{scenario.id}-found-{seed}-{found.number}"),
        summary=f"History {found.number} of a search with seed {seed} is as right as any other.",
        tags=(*(tag for tag in scenario.tags if tag != "found"), "found"),
    )


def write_search(report: SearchReport, folder: Path, *, rerun: str) -> SearchReport:
    """Write everything into the run folder of a search.

    Args:
        report: How it ended.
        folder: Run folder.
        rerun: Command that runs a scenario file alone, without the file.

    Returns:
        The report with the found case under its own id.

    Raises:
        OSError: if a file cannot be written.
    """
    if report.found is not None:
        path = folder / FOUND_FILE
        scenario = named(report.found, report.seed)
        result = _own(report.found.result, scenario, path, rerun)
        report = replace(report, found=replace(report.found, scenario=scenario, result=result))
        assert report.found is not None
        write_text(path, scenario_to_yaml(scenario, comments=_comments(report.found, rerun)))
        write_record(result_path(folder, result.id), result)
    write_record(folder / SEARCH_FILE, report)
    write_text(folder / REPORT_FILE, "\n".join(["# Search", "", *_page(report, folder)]) + "\n")
    return report


def _own(result: ScenarioResult, scenario: Scenario, path: Path, rerun: str) -> ScenarioResult:
    return replace(
        result,
        id=scenario.id,
        content_hash=scenario.content_hash,
        summary=scenario.summary,
        tags=scenario.tags,
        scenario=to_jsonable(scenario),
        file=f"{path}:1",
        rerun=f"{rerun} {path}",
    )


def _comments(found: Found, rerun: str) -> list[str]:
    lines = [f"Shows {found.signature}.", f"{rerun} {FOUND_FILE}"]
    if found.joined:
        lines.append(f"The microbatches of {found.joined} earlier histories stand first.")
    if not found.alone:
        lines.append("Seen behind other scenarios in the same processes only; not alone.")
    return lines


def search_lines(report: SearchReport, folder: Path) -> list[str]:
    """Return what to say at the end, for a console."""
    rate = report.histories / report.duration_s if report.duration_s else 0.0
    lines = [
        f"{report.histories} histories in {report.duration_s:.1f} s ({rate:.1f} a second), "
        f"seed {report.seed}, order {report.order}",
        *(f"  {count:>6}  {name}" for name, count in report.counts.items()),
        f"ended: {_ENDINGS[report.ending]}",
    ]
    if report.missing is not None:
        lines.append(f"not run: missing {report.missing}")
    found = report.found
    if found is not None:
        packs = ", ".join(str(list(pack.sequences)) for pack in found.scenario.microbatches)
        lines += [
            f"found: {found.signature} in history {found.number}: {packs}",
            f"  {found.result.explanation}",
            f"  {folder / FOUND_FILE}",
            f"  rerun: {found.result.rerun}",
        ]
        if found.joined:
            lines.append(f"  it needs the {found.joined} histories before it, which the file holds")
        if not found.alone:
            lines.append(
                "  it did not show alone, nor behind the histories before it: it comes and goes"
            )
    return lines


def _page(report: SearchReport, folder: Path) -> list[str]:
    return ["```text", *search_lines(report, folder), "```"]
