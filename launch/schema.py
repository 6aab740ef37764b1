"""``dsa-harness schema``: the JSON schema of scenario files, for editors."""

from __future__ import annotations

import click

from harness.record.verdict import ExitCode


@click.command(short_help="Print the JSON schema of scenario files.")
@click.option("--write", is_flag=True, help="Write configs/scenario.schema.json instead.")
@click.option("--check", is_flag=True, help="Say whether configs/scenario.schema.json is current.")
@click.pass_context
def schema(ctx: click.Context, write: bool, check: bool) -> None:
    """Print the JSON schema of scenario files, generated from the models that check them."""
    from harness.scenario.generate import SCHEMA_PATH, is_current, schema_text

    if check:
        current = is_current()
        state = "is current" if current else "is stale; run dsa-harness schema --write"
        click.echo(f"{SCHEMA_PATH.name} {state}")
        ctx.exit(ExitCode.OK if current else ExitCode.CHECK_FAILED)
    if write:
        SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
        click.echo(f"wrote {SCHEMA_PATH}")
    else:
        click.echo(schema_text(), nl=False)
