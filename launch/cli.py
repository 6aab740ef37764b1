"""The console script ``dsa-harness``: a group whose subcommands are imported when they are used.

``--help`` and completion must not pay for what they do not run, so the one-line helps are kept in
the table below. Every option also has an environment variable ``DSA_HARNESS_<COMMAND>_<OPTION>``,
and may be spelled with dashes or underscores, as users of torchrun expect.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import click

from harness.record.verdict import ExitCode

COMMANDS = {
    "run": ("launch.run_command", "run", "Run scenarios over real ranks, without torchrun."),
    "verify": ("launch.verify", "verify", "Check scenario files without running anything."),
    "list": ("launch.listing", "list_scenarios", "List the scenarios of files and folders."),
    "catalogue": ("launch.catalogue", "catalogue", "Show known faults and their scenarios."),
    "status": ("launch.status", "status", "Show how a run stands, and return its exit code."),
    "report": ("launch.report", "report", "Write reports from the records of a run."),
    "export": ("launch.export", "export", "Write a script or bundle, or a run for other tools."),
    "nightly": ("launch.nightly", "nightly", "Run a suite, add the night to a history, tell it."),
    "baseline": ("launch.baseline", "baseline", "Show or accept the baseline of a history."),
    "doctor": ("launch.doctor", "doctor", "Show what this machine or a cluster has and lacks."),
    "submit": ("launch.submit", "submit", "Submit scenarios to Slurm, as few jobs."),
    "jobs": ("launch.jobs", "jobs", "Show how the parts of a submission stand."),
    "wait": ("launch.jobs", "wait", "Wait for a submission, then collect it."),
    "cancel": ("launch.jobs", "cancel", "Cancel the jobs of a submission."),
    "collect": ("launch.jobs", "collect", "Make one run of a submission's parts."),
    "diff": ("launch.diff", "diff", "Show what differs between two runs, or two targets."),
    "certify": ("launch.certify", "certify", "Hold the kernel models against a device's kernels."),
    "capture": ("launch.capture", "capture", "Read what a job recorded, make a scenario of it."),
    "minimise": ("launch.minimise", "minimise", "Make a faulty scenario as small as it gets."),
    "search": ("launch.search", "search", "Search random layout histories for a wrong one."),
    "intake": ("launch.intake", "intake", "Draft a scenario from what a customer sent."),
    "affected": ("launch.affected", "affected", "Say which known faults a build has, and why."),
    "selftest": ("launch.selftest", "selftest", "Try this machine gate by gate, up to its GPUs."),
    "schema": ("launch.schema", "schema", "Print the JSON schema of scenario files."),
}
"""Subcommand to its module, the attribute there, and its line in ``--help``."""

CONTEXT_SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "auto_envvar_prefix": "DSA_HARNESS",
    "token_normalize_func": lambda token: token.replace("_", "-"),
}


class LazyGroup(click.Group):
    """A group that knows its subcommands by the table ``COMMANDS``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a subcommand; None when there is no such name."""
        name = cmd_name.replace("_", "-")
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}:{attribute} is no click command"
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a subcommand; a reader that goes away, such as ``head``, is no failed check."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # What is still buffered must not raise again when Python exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.OK
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the helps of the table, so that no subcommand is imported."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in COMMANDS.items()])


def _show_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"dsa-harness {version('dsa-harness')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings=CONTEXT_SETTINGS)
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Test and reproduce the DSA indexer of Megatron-LM under packed THD and context parallelism.

    Exit codes: 0 as expected or known, 1 a check failed, 2 bad usage or scenario file, 3 error in
    the harness, 4 a crash, hang or fault, 5 nothing ran.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with one of ``ExitCode``."""
    sys.exit(_exit_status(arguments))


def _exit_status(arguments: Sequence[str] | None) -> int:
    try:
        status = cli.main(
            None if arguments is None else list(arguments),
            prog_name="dsa-harness",
            standalone_mode=False,
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return ExitCode.INTERRUPTED
    except Exception:  # noqa: BLE001 (an exit code of its own, so that no check seems to fail)
        traceback.print_exc()
        click.echo("error in the harness itself; please report it with the lines above", err=True)
        return ExitCode.HARNESS_ERROR
    return status if isinstance(status, int) else ExitCode.OK


if __name__ == "__main__":
    main()
