"""``dsa-harness search SCENARIO``: random layout histories until one is wrong unexpectedly."""

from __future__ import annotations

from pathlib import Path

import click

from launch.paths import PATH
from launch.warm_options import (
    WarmError,
    checked,
    chosen_scenarios,
    need_hypothesis,
    on_gpu,
    rerun_command,
    run_options,
    started,
    warm_options,
)


@click.command(name="search")
@click.argument("path", metavar="SCENARIO", type=PATH)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Equal seeds give equal histories in equal order.",
)
@click.option(
    "--histories",
    type=click.IntRange(min=1),
    metavar="N",
    help="End after so many histories, whatever the budget.",
)
@warm_options
def search(
    path: Path,
    seed: int,
    histories: int | None,
    budget: float,
    num_ranks: int | None,
    keyword: str | None,
    out: Path | None,
    megatron: str | None,
    inject: tuple[str, ...],
    modelled: str | None,
    overlay: tuple[str, ...],
) -> int:
    """Draw layout histories within the limits of SCENARIO and run them over warm ranks.

    Ends at the first unexpected verdict, which is saved as a scenario file that reruns alone.
    A folder for the search is made in --out (default: runs).
    """
    need_hypothesis("search")
    from harness.record.files import safe_name
    from harness.repro.search import MOST_HISTORIES, Search
    from harness.repro.search_histories import ranks_needed
    from harness.repro.search_report import search_exit_code, search_lines, write_search
    from harness.repro.ticker import Ticker
    from harness.runtime.options import UsageError
    from harness.runtime.stop import StopRequest
    from harness.runtime.warm import WarmRanks

    out = out or Path("runs")
    checked(out)
    bases = chosen_scenarios(
        path, keyword=keyword, inject=inject, modelled=modelled, overlay=overlay
    )
    options = run_options(megatron)
    ranks = num_ranks or max(ranks_needed(base) for base in bases)
    for base in bases:
        if base.level != "scorer" and ranks < ranks_needed(base):
            raise WarmError(
                f"--ranks {ranks}: expected at least {ranks_needed(base)} for the histories of "
                f"{base.id}; leave it out, or choose another scenario with -k"
            )
    stop, ticker = StopRequest(), Ticker()
    stop.install()
    warm = WarmRanks(
        ranks,
        options=options,
        out=out,
        name=f"search-{safe_name(path.stem)}",
        on_gpu=on_gpu(bases),
        stop=stop,
        keep=lambda result: result.outcome == "unexpected",
    )
    with started(warm):
        ticker.say(f"search: {len(bases)} scenarios, {ranks} ranks, seed {seed}, {budget:.0f} s")
        begun = Search(
            bases=bases,
            evaluator=warm,
            seed=seed,
            budget_s=budget,
            most=histories or MOST_HISTORIES,
            stop=stop,
            tell=lambda number, counts: ticker.tick(
                f"{number} histories: "
                + ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
            ),
        )
        try:
            for base in bases:
                warm.planned(base)
            report = begun.run()
        except UsageError as error:
            raise WarmError("\n".join(error.problems)) from error
        ticker.end()
        report = write_search(report, warm.folder.path, rerun=rerun_command(ranks, megatron))
    for line in search_lines(report, warm.folder.path):
        click.echo(line)
    code = stop.exit_code if report.ending == "stopped" and stop() else search_exit_code(report)
    click.echo(f"exit code {int(code)} ({code.meaning}); {warm.folder.path}")
    return int(code)
