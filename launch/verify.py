"""``dsa-harness verify``: check scenario files, and explain what they would run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.record.verdict import ExitCode
from launch.scenario_options import FORMATS, count, paths_argument, show_json, show_problems

if TYPE_CHECKING:
    from harness.scenario.loader import LoadResult
    from harness.scenario.verify import MicrobatchPlan, RankPlan, Verification


@click.command(short_help="Check scenario files without running anything.")
@paths_argument
@click.option(
    "--explain", is_flag=True, help="Show ranks, plan, memory and notes of each scenario."
)
@click.option("--format", type=click.Choice(FORMATS), default="text", show_default=True)
@click.pass_context
def verify(ctx: click.Context, paths: tuple[Path, ...], explain: bool, format: str) -> None:
    """Check scenario files, suites and folders of them, without torch and without Megatron.

    All errors of all files are shown at once. Exit code 0 when every file can be used, 2 when one
    cannot.
    """
    from harness.scenario.loader import load

    result = load(paths)
    if format == "json":
        _show_json(result, explain=explain)
    else:
        show_problems(result.problems, format)
        if explain:
            _explain(result)
        click.echo(_summary(result))
    ctx.exit(ExitCode.OK if result.ok else ExitCode.USAGE)


def _summary(result: LoadResult) -> str:
    from harness.scenario.problems import Severity

    errors = sum(problem.severity is Severity.ERROR for problem in result.problems)
    warnings = len(result.problems) - errors
    parts = [count(len(result.suites), "suite")] if result.suites else []
    parts += [
        f"{count(result.num_files, 'file')}, {count(len(result.scenarios), 'scenario')}",
        count(errors, "error") if errors else "no errors",
    ]
    if warnings:
        parts.append(count(warnings, "warning"))
    return ", ".join(parts)


def _show_json(result: LoadResult, *, explain: bool) -> None:
    from harness.scenario.verify import verify as work_out

    show_json(
        {
            "schema_version": 1,
            "ok": result.ok,
            "num_files": result.num_files,
            "suites": result.suites,
            "problems": result.problems,
            "scenarios": [
                {
                    "id": loaded.scenario.id,
                    "content_hash": loaded.scenario.content_hash,
                    "file": loaded.file,
                    "line": loaded.line,
                    **({"verification": work_out(loaded.scenario)} if explain else {}),
                }
                for loaded in result.scenarios
            ],
        }
    )


def _explain(result: LoadResult) -> None:
    from harness.scenario.verify import verify as work_out

    for suite in result.suites:
        chosen = count(len(suite.scenario_ids), "scenario")
        click.echo(f"suite {suite.name}  {chosen}  {suite.file}:{suite.line}")
        click.echo(f"  {suite.summary}")
    for loaded in result.scenarios:
        found = work_out(loaded.scenario)
        click.echo(f"{found.id}  {found.content_hash}  {loaded.file}:{loaded.line}")
        click.echo(f"  {_ranks(found)}, at least {_mib(found.peak_bytes_per_rank)} per rank")
        for plan in found.microbatches:
            for line in _microbatch(plan):
                click.echo(f"  {line}")
        for note in found.notes:
            click.echo(f"  note: {note}")


def _ranks(found: Verification) -> str:
    sizes = f"cp {found.context_parallel_size} x tp {found.tensor_model_parallel_size}"
    if found.level == "scorer":
        return f"level scorer, any number of ranks for the logical ranks of {sizes}"
    return f"level {found.level}, {count(found.num_ranks, 'rank')} ({sizes})"


def _microbatch(plan: MicrobatchPlan) -> list[str]:
    lines = [
        f"microbatch {plan.index}: cp {plan.cp_size}, {plan.keys} keys, {plan.plan} ({plan.reason})"
    ]
    if plan.released != plan.plan:
        lines.append(f"  megatron-core 0.19.2 takes {plan.released} ({plan.released_reason})")
    return lines + [f"  {line}" for line in _rank_lines(plan.ranks)]


def _rank_lines(ranks: tuple[RankPlan, ...]) -> list[str]:
    """Describe ranks, those that follow each other with equal numbers in one line."""
    groups: list[list[RankPlan]] = []
    for rank in ranks:
        if groups and _numbers(groups[-1][-1]) == _numbers(rank):
            groups[-1].append(rank)
        else:
            groups.append([rank])
    return [_rank_line(group) for group in groups]


def _numbers(rank: RankPlan) -> tuple[int, ...]:
    return rank.rows, rank.valid_rows, rank.segments, rank.largest_limit


def _rank_line(group: list[RankPlan]) -> str:
    first, last = group[0], group[-1]
    name = f"cp_rank {first.cp_rank}" + ("" if first is last else f" to {last.cp_rank}")
    return (
        f"{name}: {first.rows} rows, {first.valid_rows} valid, "
        f"{count(first.segments, 'segment')}, largest limit {first.largest_limit}"
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
