"""What somebody has to do after a run, in the order in which it should be done."""

from __future__ import annotations

from collections.abc import Iterator

from harness.record.verdict import ExitCode, Verdict
from reports.action import Action, ActionKind
from reports.proof import MODELLED
from reports.summary import Need, RunSummary, ScenarioView
from reports.text import counted, shorten

_LONGEST = 400


def actions(summary: RunSummary) -> tuple[Action, ...]:
    """Return what a run calls for, most urgent first, changes against another run among it."""
    found = [*_run_actions(summary), *map(_scenario_action, summary.failing), *summary.changes]
    return tuple(sorted(found, key=lambda action: action.kind.place))


def _run_actions(summary: RunSummary) -> Iterator[Action]:
    if summary.exit_code in (None, ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        yield Action(kind=ActionKind.RUN, text=summary.exit_line)
    if summary.missing:
        shown = ", ".join(summary.missing[:5]) + (" ..." if len(summary.missing) > 5 else "")
        number = counted(len(summary.missing), "scenario")
        yield Action(kind=ActionKind.RUN, text=f"{number} without a result: {shown}")
    for warning in summary.warnings:
        yield Action(kind=ActionKind.RUN, text=shorten(warning, _LONGEST))
    gpus = () if summary.record is None else summary.record.environment.gpus
    modelled = [item for item in summary.scenarios if MODELLED in item.kernels]
    if gpus and modelled:
        yield Action(
            kind=ActionKind.MODELLED,
            text=f"{counted(len(modelled), 'scenario')} ran modelled kernels on a machine with "
            f"{counted(len(gpus), 'GPU')}",
        )


def _scenario_action(item: ScenarioView) -> Action:
    result = item.result
    kind = {Need.FAULT: ActionKind.FAULT, Need.FIXED: ActionKind.FIXED}.get(
        item.need, ActionKind.PATH if result.verdict is Verdict.WRONG_PATH else ActionKind.WRONG
    )
    return Action(
        kind=kind,
        scenario=result.id,
        text=f"{result.verdict}: {shorten(reason_of(item), _LONGEST)}",
    )


def reason_of(item: ScenarioView) -> str:
    """Return why a scenario needs somebody, in one sentence."""
    said = {finding.label: finding.text for finding in item.findings}
    for label in ("first fault", "error", "why", "path", "worst rank"):
        if label in said:
            return said[label]
    return f"expected {item.result.expected}"
