"""What a comparison with an earlier run adds to the list of things to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from reports.action import Action, ActionKind
from reports.comparison.compare import Change, Comparison, ScenarioChange, compare
from reports.comparison.digest import Topic
from reports.proof import HARDWARE, MODELLED
from reports.store import StoredRun
from reports.text import counted, shorten

_LONGEST = 300
_SHOWN = 3
"""Most changes of one kind that are named."""


def changes_against(before: StoredRun, after: StoredRun) -> tuple[Action, ...]:
    """Return what got worse, or other, since an earlier run."""
    return change_actions(compare(before, after))


def change_actions(comparison: Comparison) -> tuple[Action, ...]:
    """Return one action for each scenario and kind of change."""
    found = [
        action
        for scenario in comparison.scenarios
        for action in _scenario_actions(scenario, comparison.before)
    ]
    if comparison.only_before:
        names = ", ".join(comparison.only_before[:_SHOWN])
        more = " ..." if len(comparison.only_before) > _SHOWN else ""
        gone = counted(len(comparison.only_before), "scenario")
        text = f"{gone} of {comparison.before} did not run here: {names}{more}"
        found.append(Action(kind=ActionKind.RUN, text=shorten(text, _LONGEST)))
    return tuple(found)


def _scenario_actions(scenario: ScenarioChange, before: str) -> Iterator[Action]:
    kinds: dict[ActionKind, list[Change]] = {}
    for change in scenario.behaviour:
        kind = _kind(change)
        if kind is not None:
            kinds.setdefault(kind, []).append(change)
    for kind, changes in kinds.items():
        text = f"{_text(changes)} (against {before})"
        yield Action(kind=kind, scenario=scenario.id, text=shorten(text, _LONGEST))


def _kind(change: Change) -> ActionKind | None:
    """Return what a change calls for, None where it got better or nobody has to act."""
    match change.topic:
        case Topic.VERDICT:
            return ActionKind.FLIPPED
        case Topic.PATH | Topic.PLAN:
            return ActionKind.PATH
        case Topic.KERNELS:
            turned = HARDWARE in change.before and MODELLED in change.after
            return ActionKind.MODELLED if turned else None
        case Topic.OVERLAP:
            return ActionKind.OVERLAP if _fell(change) else None
        case Topic.TIMINGS:
            return ActionKind.SLOWER if _rose(change) else None
    return None


def _numbers(change: Change) -> tuple[list[float], list[float]]:
    before, after = (
        [float(number) for number in re.findall(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", text)]
        for text in (change.before, change.after)
    )
    return before, after


def _fell(change: Change) -> bool:
    """Tell whether overlap or strict overlap of a rank became less."""
    before, after = _numbers(change)
    return any(new < old for old, new in zip(before[:2], after[:2], strict=False))


def _rose(change: Change) -> bool:
    before, after = _numbers(change)
    return bool(before and after) and after[0] > before[0]


def _text(changes: Sequence[Change]) -> str:
    shown = [f"{item.item} {item.after}, before {item.before}" for item in changes[:_SHOWN]]
    more = len(changes) - len(shown)
    return "; ".join([*shown, *([f"{more} more"] if more else [])])
