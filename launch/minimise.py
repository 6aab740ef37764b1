"""``dsa-harness minimise SCENARIO``: the smallest case that shows the same fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.record.verdict import ExitCode
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

if TYPE_CHECKING:
    from harness.repro.memory import Memory
    from harness.repro.minimise import Acceptance, Minimiser, Step
    from harness.repro.search import Evaluator
    from harness.runtime.stop import StopRequest
    from harness.scenario.spec import Scenario


@click.command(name="minimise")
@click.argument("path", metavar="SCENARIO", type=PATH)
@click.option(
    "--signature",
    "signature_file",
    type=PATH,
    metavar="FILE",
    help="Fault to keep: a signature, or a result of a run (results/*.json). Without it SCENARIO "
    "is run once as it is.",
)
@click.option(
    "--evaluations", type=click.IntRange(min=1), metavar="N", help="End after so many runs."
)
@click.option(
    "--accept",
    metavar="K/N",
    default="1/1",
    show_default=True,
    help="For faults that come and go: a case counts when K of N runs show the fault.",
)
@click.option("--resume", is_flag=True, help="Go on with what stands in --out.")
@warm_options
def minimise(
    path: Path,
    signature_file: Path | None,
    evaluations: int | None,
    accept: str,
    resume: bool,
    budget: float,
    num_ranks: int | None,
    keyword: str | None,
    out: Path | None,
    megatron: str | None,
    inject: tuple[str, ...],
    modelled: str | None,
    overlay: tuple[str, ...],
) -> int:
    """Make SCENARIO smaller as long as it shows the same fault, known or not.

    Every smaller case is saved at once, in the folder given by --out (default:
    runs/minimise-<scenario>).
    """
    need_hypothesis("minimise")
    from harness.record.files import safe_name
    from harness.repro.minimise_report import SignatureFileError, read_signature

    found = chosen_scenarios(
        path, keyword=keyword, inject=inject, modelled=modelled, overlay=overlay
    )
    if len(found) > 1:
        names = ", ".join(scenario.id for scenario in found[:4])
        raise WarmError(
            f"{path}: expected one scenario, found {len(found)} ({names}); choose by -k"
        )
    (scenario,) = found
    acceptance = _acceptance(accept)
    try:
        wanted = None if signature_file is None else read_signature(signature_file)
    except SignatureFileError as error:
        raise WarmError(str(error)) from error
    from harness.repro.minimise import Minimiser
    from harness.runtime.stop import StopRequest

    folder = out or Path("runs") / f"minimise-{safe_name(scenario.id)}"
    checked(folder)
    stop = StopRequest()
    stop.install()
    return _minimise(
        scenario,
        folder=folder,
        resume=resume,
        num_ranks=num_ranks or min(scenario.num_ranks, 64),
        megatron=megatron,
        stop=stop,
        make=lambda evaluator, memory: Minimiser(
            scenario=scenario,
            evaluator=evaluator,
            wanted=wanted,
            acceptance=acceptance,
            budget_s=budget,
            most=evaluations,
            memory=memory,
            stop=stop,
        ),
    )


def _acceptance(text: str) -> Acceptance:
    from harness.repro.minimise import Acceptance

    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise WarmError(f"--accept {text}: expected K/N with 1 <= K <= N, such as 2/5")
    return Acceptance(hits=int(match[1]), trials=int(match[2]))


def _claim(folder: Path, scenario: Scenario) -> None:
    """Note which case a folder is about; results of another one are not to be overwritten."""
    note = folder / "given"
    case = f"{scenario.content_hash} {scenario.id}\n"
    if note.exists() and note.read_text(encoding="utf-8").split()[0] != scenario.content_hash:
        other = note.read_text(encoding="utf-8").strip()
        raise WarmError(f"{folder}: holds a minimisation of {other}; choose another --out")
    note.write_text(case, encoding="utf-8")


def _minimise(
    scenario: Scenario,
    *,
    folder: Path,
    resume: bool,
    num_ranks: int,
    megatron: str | None,
    stop: StopRequest,
    make: Callable[[Evaluator, Memory], Minimiser],
) -> int:
    """Run a minimisation over warm ranks, and write and tell what comes of it."""
    from harness.repro.memory import Memory
    from harness.repro.minimise import NothingToMinimiseError
    from harness.repro.minimise_report import RUNS_FILE, Files, minimise_lines
    from harness.repro.ticker import Ticker
    from harness.runtime.options import UsageError
    from harness.runtime.warm import WarmRanks

    runs = folder / RUNS_FILE
    if runs.exists() and not resume:
        raise WarmError(f"{folder}: holds an earlier minimisation; add --resume, or another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WarmError(f"--out {folder}: {error.strerror or error}; choose another") from error
    _claim(folder, scenario)
    ticker = Ticker()
    options = run_options(megatron)
    rerun = rerun_command(num_ranks, megatron)
    files = Files(folder=folder, given=scenario, rerun=rerun)
    ranks = WarmRanks(num_ranks, options=options, on_gpu=on_gpu((scenario,)), stop=stop)
    with started(ranks) as warm:
        minimiser = make(warm, Memory.open(runs))

        def improved(step: Step) -> None:
            files.step(step, minimiser.wanted)
            ticker.say(
                f"{step.seconds:6.1f} s  {step.evaluations:4} runs  {step.name}: {step.text}"
            )

        minimiser.improved = improved
        minimiser.tell = lambda text, count: ticker.tick(f"{count} runs, last: {text}")
        try:
            warm.planned(scenario)
            report = minimiser.run()
        except (NothingToMinimiseError, UsageError) as error:
            ticker.end()
            if not stop():
                raise WarmError(str(error)) from error
            click.echo(f"Error: {error}", err=True)
            return int(stop.exit_code)
        finally:
            ticker.end()
    report = files.end(report)
    for line in minimise_lines(report, folder):
        click.echo(line)
    code = stop.exit_code if report.ending == "stopped" and stop() else ExitCode.OK
    click.echo(f"exit code {int(code)} ({code.meaning})")
    return int(code)
