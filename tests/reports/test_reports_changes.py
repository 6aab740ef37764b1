"""What changed since an earlier run is something to act on, unless it got better."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from sample_parts import PROOF, path, selection, stats
from sample_records import crash, passing, write_run

from harness.record.result import PhaseTiming, ScenarioResult
from launch.report import report
from reports.action import ActionKind
from reports.actions import actions
from reports.changes import changes_against
from reports.render import HTML_FILE, SUMMARY_FILE, read_summary
from reports.store import StoredRun


def stored(*results: ScenarioResult) -> StoredRun:
    return StoredRun(folder=Path("runs/earlier"), record=None, results=results)


def changed(**changes: object) -> ScenarioResult:
    item = passing()
    return replace(item, attempts=(replace(item.last, **changes),))  # type: ignore[arg-type]


def kinds(before: ScenarioResult, after: ScenarioResult) -> list[ActionKind]:
    return [action.kind for action in changes_against(stored(before), stored(after))]


def slower(seconds: float) -> ScenarioResult:
    ranks = tuple(
        replace(rank, phases=tuple(
            PhaseTiming(phase=t.phase, begin_s=0.0, end_s=seconds) for t in rank.phases
        ))
        for rank in passing().last.ranks
    )  # fmt: skip
    return changed(duration_s=seconds, ranks=ranks)


HARDWARE = changed(proof=replace(PROOF, kernels={"indexer_forward": "hardware"}))
LESS = changed(selections=tuple(selection(n, stats(tie=9 + n)) for n in range(4)))


def test_nothing_changed() -> None:
    assert kinds(passing(), passing()) == []


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (HARDWARE, passing(), ActionKind.MODELLED),
        (passing(), changed(paths=(path(0, plan="packed_single"),)), ActionKind.PATH),
        (passing(), LESS, ActionKind.OVERLAP),
        (slower(1.0), slower(4.0), ActionKind.SLOWER),
        (passing(), replace(crash(), id=passing().id), ActionKind.FLIPPED),
    ],
)
def test_what_got_worse_is_told_and_what_got_better_is_not(
    before: ScenarioResult, after: ScenarioResult, kind: ActionKind
) -> None:
    assert kind in kinds(before, after)
    if kind not in (ActionKind.FLIPPED, ActionKind.PATH):
        assert kind not in kinds(after, before)


def test_text_names_both_sides_and_the_run() -> None:
    (action,) = changes_against(stored(slower(1.0)), stored(slower(4.0)))
    assert action.scenario == passing().id
    assert action.text.startswith("whole 4 s, before 1 s")
    assert action.text.endswith("(against earlier)")


def test_scenarios_that_are_gone_are_told_once() -> None:
    gone = [passing(f"p/{n}") for n in range(5)]
    (action,) = changes_against(stored(*gone), stored())
    assert action.kind is ActionKind.RUN
    assert action.text == "5 scenarios of earlier did not run here: p/0, p/1, p/2 ..."


def test_the_command_takes_an_earlier_run(tmp_path: Path) -> None:
    before = write_run(tmp_path / "before", [passing(), slower(1.0)])
    after = write_run(tmp_path / "after", [slower(4.0)])
    assert actions(read_summary(after)) == ()
    shown = CliRunner().invoke(report, [str(after), "--against", str(before)])
    assert shown.exit_code == 0
    assert "slower" in (after / HTML_FILE).read_text(encoding="utf-8")
    data = json.loads((after / SUMMARY_FILE).read_text(encoding="utf-8"))
    assert [item["kind"] for item in data["actions"]] == ["slower"]
    shown = CliRunner().invoke(report, [str(after), "--against", str(tmp_path / "absent")])
    assert shown.exit_code == 2
    assert len(shown.stderr.splitlines()) == 1
