"""``dsa-harness export PATH --to script|bundle``: a case that runs without the harness."""

from __future__ import annotations

from pathlib import Path

import click

from harness.record.verdict import ExitCode

FORMATS = ("script", "bundle")


class ReproError(click.ClickException):
    """The case cannot be exported; one line, exit code 2."""

    exit_code = int(ExitCode.USAGE)


def export_repro(path: Path, form: str, out: Path | None, scenario_id: str | None) -> int:
    """Write a script, or a bundle around it, of a scenario file or of a result of a run."""
    from harness.repro.source import SourceError, find_exported

    try:
        exported = find_exported(path, scenario_id=scenario_id)
    except SourceError as error:
        raise ReproError(str(error)) from error
    if form == "bundle":
        return _bundle(exported, out)
    from harness.record.files import write_text
    from harness.repro.refusals import ExportRefusedError
    from harness.repro.script import kernels_in_words, needs_in_words, script_text

    try:
        text = script_text(exported.scenario, result=exported.result)
    except ExportRefusedError as error:
        raise ReproError(str(error)) from error
    if out is None:
        click.echo(text, nl=False)
        return int(ExitCode.OK)
    try:
        write_text(out, text)
    except OSError as error:
        raise ReproError(f"--out {out}: {error.strerror}; choose another") from error
    lines = len(text.splitlines())
    click.echo(f"{out}: {lines} lines, needs {needs_in_words(exported.scenario)}")
    click.echo(f"kernels: {kernels_in_words(exported.scenario)}")
    return int(ExitCode.OK)


def _bundle(exported: object, out: Path | None) -> int:
    from harness.repro.bundle import BundleError, make_bundle, write_bundle
    from harness.repro.source import Exported
    from harness.runtime.fingerprint import collect

    assert isinstance(exported, Exported)
    bundle = make_bundle(exported, collect())
    try:
        written = write_bundle(bundle, out or Path(f"{bundle.name}.tar.gz"))
    except BundleError as error:
        raise ReproError(str(error)) from error
    click.echo(f"{written}: {', '.join(sorted(bundle.files))}")
    if bundle.why_no_script:
        click.echo(f"without a script: {bundle.why_no_script}")
    click.echo("read issue.md before you post it: what no rule knows is not taken out")
    return int(ExitCode.OK)
