"""A planted fault that did not happen is told of, above all where everything is green."""

from __future__ import annotations

from dataclasses import replace

from sample_records import passing, run_record

from harness.record.evidence import NEVER_STRUCK, NoteEvidence
from harness.record.result import ScenarioResult
from reports.console import summary_text
from reports.injected import never_struck
from reports.markdown import render_markdown
from reports.summary import summarise


def spared(number: int) -> ScenarioResult:
    notes = tuple(
        NoteEvidence(topic=NEVER_STRUCK, text=f"past_limit: microbatch {place} has no row")
        for place in range(number)
    )
    found = passing()
    return replace(found, attempts=(replace(found.last, notes=notes + notes),))


def test_nothing_is_said_of_faults_that_happened() -> None:
    assert never_struck(passing().last) == ""


def test_each_place_is_told_once_and_many_are_counted() -> None:
    assert never_struck(spared(1).last) == "past_limit: microbatch 0 has no row"
    assert never_struck(spared(5).last).endswith("microbatch 2 has no row; and 2 more")


def test_a_green_scenario_says_it_in_every_text() -> None:
    for results, shown in (([passing()], False), ([spared(1)], True)):
        summary = summarise(run_record(results), results)
        for text in (summary_text(summary), render_markdown(summary)):
            assert ("never struck: past_limit: microbatch 0 has no row" in text) is shown
