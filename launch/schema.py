"""``dsa-harness schema``: the JSON schemas of scenario and suite files, for editors."""

from __future__ import annotations

import click

from harness.record.verdict import ExitCode


@click.command(short_help="Print the JSON schema of scenario or suite files.")
@click.option("--suite", is_flag=True, help="Print that of suite files.")
@click.option("--write", is_flag=True, help="Write the schema files in configs/ instead.")
@click.option("--check", is_flag=True, help="Say whether the schema files in configs/ are current.")
@click.pass_context
def schema(ctx: click.Context, suite: bool, write: bool, check: bool) -> None:
    """Print the JSON schema of scenario files, generated from the models that check them."""
    from harness.scenario.generate import (
        is_current,
        kept_schemas,
        schema_text,
        suite_schema_text,
        write_schemas,
    )

    if check:
        current = {path: is_current(path, text) for path, text in kept_schemas().items()}
        for path, good in current.items():
            state = "is current" if good else "is stale; run dsa-harness schema --write"
            click.echo(f"{path.name} {state}")
        ctx.exit(ExitCode.OK if all(current.values()) else ExitCode.CHECK_FAILED)
    if write:
        for path in write_schemas():
            click.echo(f"wrote {path}")
    else:
        click.echo(suite_schema_text() if suite else schema_text(), nl=False)
