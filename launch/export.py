"""``dsa-harness export RUN --to FORMAT``: a run's records in the formats of other tools."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from harness.record.files import safe_name, write_text
from harness.record.result import ScenarioResult
from harness.record.verdict import ExitCode
from launch.export_repro import FORMATS as REPRO_FORMATS
from launch.export_repro import export_repro
from launch.paths import PATH

FORMATS = (
    *REPRO_FORMATS,
    *("github-summary", "github-annotations", "pytorch-benchmark", "megatron-golden"),
)


class ExportError(click.ClickException):
    """The export cannot be made; one line, exit code 2."""

    exit_code = int(ExitCode.USAGE)


@click.command(name="export")
@click.argument("run", metavar="PATH", type=PATH)
@click.option("--to", "form", type=click.Choice(FORMATS), required=True, help="The format.")
@click.option(
    "--out",
    type=PATH,
    help="File to write, or folder for megatron-golden; for a bundle a folder or a .tar.gz "
    "(default: standard output, for a bundle an archive named after the scenario; the job summary "
    "goes to $GITHUB_STEP_SUMMARY where that is set).",
)
@click.option("--id", "scenario_id", metavar="ID", help="With script and bundle: which scenario.")
@click.option(
    "--against",
    type=PATH,
    metavar="PATH",
    help="With megatron-golden: hold RUN against golden values (a file for a run of one scenario, "
    "else a folder of them) and write nothing.",
)
@click.option("--exact", is_flag=True, help="With --against: no tolerance, no step may miss.")
def export(
    run: Path,
    form: str,
    out: Path | None,
    scenario_id: str | None,
    against: Path | None,
    exact: bool,
) -> int:
    """Write a case as a script or bundle, or the records of a run in the format of another tool.

    PATH is a run folder; for script and bundle also a scenario file, or a result of a run.

    Exit code 1 when --against finds a difference.
    """
    if form in REPRO_FORMATS:
        if against is not None:
            raise ExportError(f"--against: goes with --to megatron-golden, found --to {form}")
        return export_repro(run, form, out, scenario_id)
    if scenario_id is not None:
        raise ExportError(f"--id: goes with --to script or bundle, found --to {form}")
    from reports.render import read_summary
    from reports.store import RunFolderError, load_run

    try:
        stored = load_run(run)
        summary = read_summary(run)
    except RunFolderError as error:
        raise ExportError(str(error)) from error
    if against is not None and form != "megatron-golden":
        raise ExportError(f"--against: goes with --to megatron-golden, found --to {form}")
    if against is not None:
        return _against(stored.results, against, exact=exact)
    if form == "megatron-golden":
        _golden(stored.results, out or Path("golden_values"))
        return int(ExitCode.OK)
    if form == "github-summary":
        from reports.exports.github import job_summary

        _write(job_summary(summary), out or _step_summary())
    elif form == "github-annotations":
        from reports.exports.github import annotation_lines

        _write("".join(f"{line}\n" for line in annotation_lines(summary)), out)
    else:
        from reports.exports.pytorch_benchmark import records

        if stored.record is None:
            raise ExportError(f"{run}: expected a readable run.json, found none")
        _write(json.dumps(records(stored.record, stored.results), indent=1) + "\n", out)
    return int(ExitCode.OK)


def _golden(results: tuple[ScenarioResult, ...], out: Path) -> None:
    from reports.exports.golden_values import golden_values

    written = 0
    for result in results:
        values = golden_values(result)
        if values:
            _write(json.dumps(values, indent=1) + "\n", out / f"{safe_name(result.id)}.json")
            written += 1
    click.echo(f"{written} of {len(results)} scenarios have golden values, in {out}")


def _against(results: tuple[ScenarioResult, ...], golden: Path, *, exact: bool) -> int:
    from reports.exports.golden_values import (
        APPROXIMATE,
        DETERMINISTIC,
        GoldenError,
        mismatches,
        read_golden,
    )

    if golden.is_file() and len(results) != 1:
        raise ExportError(
            f"--against {golden}: expected a folder of golden values for a run of "
            f"{len(results)} scenarios, found a file"
        )
    num_checked = num_wrong = 0
    for result in results:
        path = golden if golden.is_file() else golden / f"{safe_name(result.id)}.json"
        if not path.exists():
            continue
        try:
            values = read_golden(path)
        except GoldenError as error:
            raise ExportError(str(error)) from error
        num_checked += 1
        tolerance = DETERMINISTIC if exact else APPROXIMATE
        for item in mismatches(values, result, tolerance=tolerance):
            num_wrong += 1
            click.echo(
                f"{result.id}: {item.metric} at step {item.step}: expected {item.expected}, "
                f"found {item.found}"
            )
    if not num_checked:
        raise ExportError(f"--against {golden}: no golden values for any scenario of this run")
    click.echo(f"{num_checked} scenarios held against golden values, {num_wrong} differences")
    return int(ExitCode.CHECK_FAILED if num_wrong else ExitCode.OK)


def _step_summary() -> Path | None:
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    return Path(path) if path else None


def _write(text: str, out: Path | None) -> None:
    if out is None:
        click.echo(text, nl=False)
        return
    try:
        write_text(out, text)
    except OSError as error:
        raise ExportError(f"--out {out}: {error.strerror}; choose another") from error
