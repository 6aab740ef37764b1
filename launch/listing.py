"""``dsa-harness list``: the scenarios of files, suites and folders, by id and tag."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.record.verdict import ExitCode
from launch.scenario_options import count, paths_argument, show_json, show_problems

if TYPE_CHECKING:
    from harness.scenario.loader import LoadedSuite
    from harness.scenario.spec import Scenario


@click.command("list", short_help="List the scenarios of files, suites and folders.")
@paths_argument
@click.option("--cost", "costed", is_flag=True, help="Estimate the GPU time of each path instead.")
@click.option("--ranks-per-gpu", type=click.IntRange(min=1), default=1, metavar="N",
              help="With --cost: ranks that share a GPU.")  # fmt: skip
@click.option("--suites", is_flag=True, help="List the suites instead of their scenarios.")
@click.option("-k", "expression", metavar="EXPR", help="Words of the id with and, or, not, ().")
@click.option("-t", "--tag", "tags", metavar="TAG", multiple=True, help="Repeat to ask for all.")
@click.option(
    "--format",
    type=click.Choice(("text", "ids", "json")),
    default="text",
    show_default=True,
)
@click.pass_context
def list_scenarios(
    ctx: click.Context,
    paths: tuple[Path, ...],
    costed: bool,
    ranks_per_gpu: int,
    suites: bool,
    expression: str | None,
    tags: tuple[str, ...],
    format: str,
) -> None:
    """List scenarios with content hash, ranks, level and tags; of a suite, those it chooses.

    Exit code 2 when a file has errors (the scenarios of the other files are still listed), 5 when
    nothing is selected.
    """
    from harness.scenario.loader import load
    from harness.scenario.select import ExpressionError, select

    if suites and (expression is not None or tags):
        raise click.UsageError("--suites lists whole suites; leave out -k and -t")
    result = load(paths)
    show_problems(result.problems, "text", err=True)
    try:
        chosen = select((x.scenario for x in result.scenarios), expression=expression, tags=tags)
    except ExpressionError as error:
        raise click.UsageError(str(error)) from error
    if costed:
        _show_cost(chosen, ranks_per_gpu)
    elif suites:
        _show_suites(result.suites, format)
    elif format == "json":
        show_json([_row(scenario) for scenario in chosen])
    else:
        for line in _lines(chosen, ids_only=format == "ids"):
            click.echo(line)
    if not result.ok:
        ctx.exit(ExitCode.USAGE)
    if suites and not result.suites:
        click.echo("no suite among these files", err=True)
        ctx.exit(ExitCode.NOTHING_RAN)
    if not suites and not chosen:
        click.echo(f"no scenario selected of {len(result.scenarios)}", err=True)
        ctx.exit(ExitCode.NOTHING_RAN)


def _show_suites(suites: tuple[LoadedSuite, ...], format: str) -> None:
    if format == "json":
        show_json(suites)
        return
    width = max((len(suite.name) for suite in suites), default=0)
    for suite in suites:
        if format == "ids":
            click.echo(suite.name)
            continue
        chosen = count(len(suite.scenario_ids), "scenario")
        click.echo(f"{suite.name:<{width}}  {chosen:>13}  {suite.file}  {suite.summary}")


def _show_cost(chosen: tuple[Scenario, ...], ranks_per_gpu: int) -> None:
    """Say what the chosen scenarios would take in the order in which they would run."""
    from harness.scenario.cost import cost

    found = cost(chosen, ranks_per_gpu=ranks_per_gpu)
    click.echo(
        f"{count(found.num_scenarios, 'scenario')} on GPUs, at most {found.most_gpus} at once: "
        f"about {found.estimate_s / 3600:.2f} GPU-hours (assumed, not measured), at most "
        f"{found.limit_s / 3600:.2f} by their time limits"
    )


def _row(scenario: Scenario) -> dict[str, object]:
    return {
        "id": scenario.id,
        "content_hash": scenario.content_hash,
        "num_ranks": scenario.num_ranks,
        "level": scenario.level,
        "tags": scenario.tags,
        "summary": scenario.summary,
    }


def _lines(scenarios: tuple[Scenario, ...], *, ids_only: bool) -> list[str]:
    if ids_only:
        return [scenario.id for scenario in scenarios]
    width = max((len(scenario.id) for scenario in scenarios), default=0)
    return [
        f"{scenario.id:<{width}}  {scenario.content_hash}  {scenario.num_ranks:>3} "
        f"{'rank ' if scenario.num_ranks == 1 else 'ranks'}  {scenario.level:<9}  "
        f"{','.join(scenario.tags)}".rstrip()
        for scenario in scenarios
    ]
