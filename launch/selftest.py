"""``dsa-harness selftest``: gates in order, each with a limit, what failed and what to do."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.record.verdict import ExitCode
from launch.paths import PATH

if TYPE_CHECKING:
    from launch.gates.gate import GateResult


# fmt: off
@click.command(name="selftest")
@click.option("--hardware", is_flag=True,
              help="Go on to the gates of a machine with a GPU, or several.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this gate; repeatable.")
@click.option("--list", "listed", is_flag=True, help="List the gates and run none.")
@click.option("--json", "json_file", type=PATH, metavar="FILE",
              help="Also write what was found to FILE, to send back.")
def selftest(
    hardware: bool, only: tuple[str, ...], listed: bool, json_file: Path | None
) -> int:
    # fmt: on
    """Try this machine, from one process to a planted illegal address.

    Exit code 0 when every gate passed or names what it lacks, 1 when one failed, 5 when none of
    the GPU's gates could run with --hardware.
    """
    from launch.gates.gate import run_gates
    from launch.gates.lists import hardware_gates, machine_gates

    gates = (*machine_gates(), *(hardware_gates() if hardware else ()))
    unknown = sorted(set(only) - {gate.name for gate in gates})
    if unknown:
        raise click.UsageError(
            f"no gate is called {', '.join(unknown)}; see --list"
            + ("" if hardware else ", and --hardware for the gates of a GPU")
        )
    if only:
        import dataclasses

        gates = tuple(dataclasses.replace(g, behind=()) for g in gates if g.name in only)
    if listed:
        for gate in gates:
            click.echo(f"{gate.name:<24} {gate.limit_s:>4.0f} s  {gate.what}")
        return int(ExitCode.OK)
    results = []
    for result in run_gates(gates, on_begin=lambda gate: click.echo(f"...      {gate.name}")):
        results.append(result)
        for line in result.lines:
            click.echo(line)
        # At once: a time limit of somebody else's may end the self-test between two gates.
        if json_file is not None:
            _write(json_file, results)
    names = {gate.name for gate in hardware_gates()}
    return int(_conclude(results, names if hardware else set()))


def _write(path: Path, results: Sequence[GateResult]) -> None:
    from harness.record.files import write_text

    found = [
        {
            "gate": item.gate.name,
            "state": str(item.state),
            "found": item.found,
            "seconds": round(item.seconds, 2),
            "tail": list(item.tail),
        }
        for item in results
    ]
    write_text(path, json.dumps(found, indent=2) + "\n")


def _conclude(results: Sequence[GateResult], hardware: set[str]) -> ExitCode:
    from launch.gates.gate import GateState

    states = [item.state for item in results]
    counts = ", ".join(f"{states.count(state)} {state}" for state in GateState)
    click.echo(counts)
    if GateState.FAILED in states:
        return ExitCode.CHECK_FAILED
    of_gpu = [item.state for item in results if item.gate.name in hardware]
    if of_gpu and set(of_gpu) == {GateState.NOT_RUN}:
        return ExitCode.NOTHING_RAN
    return ExitCode.OK
