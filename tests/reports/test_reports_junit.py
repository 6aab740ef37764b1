"""``junit.xml`` meets the common schema, and says the same to an independent reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import junitparser.xunit2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree
from sample_parts import attempt, result
from sample_records import (
    ALL,
    crash,
    fixed,
    hang,
    hostile,
    memory_fault,
    not_run,
    passing,
    released_defect,
    run_record,
    write_run,
    wrong_selection,
)

from harness.record.evidence import NoteEvidence
from harness.record.files import safe_name
from harness.record.result import ScenarioResult
from harness.record.verdict import Outcome, Verdict
from reports.junit import render_junit
from reports.render import JUNIT_FILE, read_summary, write_all
from reports.summary import RunSummary, summarise
from reports.text import strip_ansi
from reports.xml_text import xml_line, xml_lines

SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).with_name("junit.xsd")))


def summary_of(*results: ScenarioResult, **changes: object) -> RunSummary:
    return summarise(run_record(results, **changes), results)


def checked(text: str) -> junitparser.xunit2.JUnitXml:
    """Hold a file against the schema, then read it with a reader that shares no code with us."""
    SCHEMA.assertValid(etree.fromstring(text.encode()))
    return junitparser.xunit2.JUnitXml.fromstring(text.encode())


def cases(text: str) -> dict[str, junitparser.xunit2.TestCase]:
    return {case.name: case for suite in checked(text) for case in suite}


def kinds(text: str) -> dict[str, str]:
    """How a reader sees each case: passed, or the class of its result."""
    return {
        name: type(case.result[0]).__name__ if case.result else "passed"
        for name, case in cases(text).items()
    }


def test_each_outcome_as_a_reader_sees_it() -> None:
    results = [maker() for maker in ALL if maker is not hostile]
    text = render_junit(summary_of(*results))
    assert kinds(text) == {
        passing().id: "passed",
        released_defect().id: "Skipped",
        not_run().id: "Skipped",
        fixed().id: "Failure",
        wrong_selection().id: "Failure",
        "path/fallback[cp4]": "Failure",
        crash().id: "Error",
        hang().id: "Error",
        memory_fault().id: "Error",
    }
    whole = checked(text)
    assert (whole.tests, whole.failures, whole.errors) == (9, 3, 3)
    for suite in whole:
        counted = (suite.tests, suite.failures, suite.errors, suite.skipped)
        suite.update_statistics()
        assert counted == (suite.tests, suite.failures, suite.errors, suite.skipped)
    assert {suite.name for suite in whole} == {"quickstart", "causal", "faults", "path", "graph"}


def test_reasons_properties_and_the_rerun_command() -> None:
    found = cases(render_junit(summary_of(crash(), released_defect(), not_run())))
    broken = found[crash().id]
    assert broken.classname == "faults"
    assert broken.result[0].type == "crash"
    assert broken.result[0].message == (
        "unexpected: crash: global_rank 2 in phase score: ended by signal SIGSEGV"
    )
    assert broken.result[0].text.splitlines()[-1] == f"rerun       {crash().rerun}"
    values = {item.name: item.value for item in broken.properties()}
    assert values["cp_size"] == "4"
    assert values["verdict"] == "crash"
    assert values["dtype"] == "bf16"
    assert values["rerun"] == crash().rerun
    known = found[released_defect().id].result[0]
    assert known.type == "known_defect"
    assert "picks match chunk_local_window" in known.message
    assert "pull/316" in known.message
    assert found[not_run().id].result[0].message == "not run: missing a CUDA device"


def test_suites_carry_what_the_run_proves() -> None:
    suite = next(iter(checked(render_junit(summary_of(passing())))))
    values = {item.name: item.value for item in suite.properties()}
    assert values["kernels"] == "modelled 1.32.0 sm100"
    assert "prove nothing about the kernel itself" in values["proves"]
    assert suite.hostname == "n1"
    assert suite.timestamp == "2026-05-01T10:00:00"


def test_files_to_read_are_attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "runs" / "r1", [crash(), passing()])
    folder = run / "ranks" / safe_name(crash().id) / "1"
    folder.mkdir(parents=True)
    (folder / "rank2.stacks").write_text("Thread 0x1")
    (folder / "rank2.err").write_text("")
    (folder / "rank0.stacks").write_text("a victim's")
    monkeypatch.chdir(tmp_path)
    found = cases(render_junit(read_summary(run)))
    lines = found[crash().id].system_out.splitlines()
    stem = folder.parent.name
    assert lines == [
        f"[[ATTACHMENT|runs/r1/ranks/{stem}/1/rank2.stacks]]",
        f"[[ATTACHMENT|runs/r1/results/{stem}.json]]",
    ]
    assert all(Path(line[13:-2]).is_file() for line in lines)
    assert found[passing().id].system_out is None
    monkeypatch.chdir(os.sep)
    elsewhere = cases(render_junit(read_summary(run)))[crash().id].system_out.splitlines()
    assert all(Path(line[13:-2]).is_file() for line in elsewhere)


def test_a_traceback_is_there_and_its_colours_are_not() -> None:
    note = NoteEvidence(topic="harness error", text="Traceback\n\x1b[31m  line\x1b[0m\nKeyError: 1")
    broken = attempt(Verdict.HARNESS_ERROR, paths=(), notes=(note,))
    text = render_junit(summary_of(result("a", [broken], Outcome.UNEXPECTED)))
    reason = cases(text)["a"].result[0]
    assert isinstance(reason, junitparser.Error)
    assert "Traceback\n  line\nKeyError: 1" in reason.text


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"exit_code": None, "finished_at": None, "state": "killed"}, "Error", "run was killed"),
        ({"exit_code": 130, "exit_meaning": "interrupted"}, "Error", "exit code 130: interrupted"),
        ({"exit_code": 3, "notes": ("OSError: no space",)}, "Error", "exit code 3"),
    ],
)
def test_a_run_that_ended_badly_is_not_green(
    changes: dict[str, object], kind: str, words: str
) -> None:
    found = cases(render_junit(summary_of(passing(), **changes)))
    assert set(found) == {passing().id, "run"}
    reason = found["run"].result[0]
    assert type(reason).__name__ == kind
    assert words in reason.message


def test_a_harness_error_of_a_scenario_is_told_once() -> None:
    note = NoteEvidence(topic="harness error", text="x")
    broken = attempt(Verdict.HARNESS_ERROR, paths=(), notes=(note,))
    found = cases(render_junit(summary_of(result("a", [broken], Outcome.UNEXPECTED))))
    assert set(found) == {"a"}


def test_lost_results_are_errors_and_an_empty_run_is_no_pass() -> None:
    text = render_junit(summary_of(passing(), scenario_ids=(passing().id, "lost/one")))
    assert kinds(text) == {passing().id: "passed", "lost/one": "Error"}
    assert kinds(render_junit(summary_of())) == {"run": "Skipped"}
    assert kinds(render_junit(summarise(None, []))) == {"run": "Error"}


@pytest.mark.parametrize("maker", ALL)
def test_every_kind_of_record_meets_the_schema(maker: Callable[[], ScenarioResult]) -> None:
    checked(render_junit(summary_of(maker())))


NASTY = "\x00\x1b[31mred\x1b[0m\ud800\ufffe\x85]]> &amp; <a> \u202e \x0b\r\n\t\U0001f600"


def spoiled(text: str) -> ScenarioResult:
    item = hostile(f"id/{text}")
    return replace(item, summary=text, explanation=text, expected=text, file=text, rerun=text)


def test_a_log_may_hold_any_bytes() -> None:
    every_byte = bytes(range(256)).decode("utf-8", "surrogateescape")
    for text in (NASTY, every_byte, "\x1b", "\x1b]8;;http://x\x1b\\\\link\x1b]8;;\x1b\\\\"):
        checked(render_junit(summary_of(spoiled(text))))


def test_the_check_itself_can_fail() -> None:
    good = render_junit(summary_of(crash()))
    with pytest.raises(etree.XMLSyntaxError):
        checked(good.replace("SIGSEGV", "\x1b"))
    for broken in (
        good.replace("<error", "<failure").replace("</error", "</broken"),
        good.replace('tests="1"', 'tests="one"'),
        good.replace('time="1.250"', 'time="1,250"'),
        good.replace('classname="faults"', ""),
    ):
        with pytest.raises((etree.DocumentInvalid, etree.XMLSyntaxError)):
            checked(broken)


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=40))
def test_any_text_stays_readable(text: str) -> None:
    found = cases(render_junit(summary_of(spoiled(text))))
    assert len(found) == 1
    assert xml_line(text).isprintable() or xml_line(text) != ""


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1bPq;data\x1b\\text", "text"),
        ("\x1bMup", "up"),
        ("a[31m", "a[31m"),
    ],
)
def test_terminal_sequences_are_dropped(raw: str, plain: str) -> None:
    assert strip_ansi(raw) == plain


def test_what_is_no_sequence_is_shown_as_its_code() -> None:
    assert xml_line("a\x00b\x1b") == "a\\x00b\\x1b"
    assert xml_line("\ufffe\uffff") == "#xFFFE#xFFFF"
    assert xml_lines("a\nb\nc", 2) == "... 1 lines before\nb\nc"


def test_written_beside_the_report(tmp_path: Path) -> None:
    write_run(tmp_path, [maker() for maker in ALL])
    paths = {path.name: path for path in write_all(tmp_path)}
    checked(paths[JUNIT_FILE].read_text(encoding="utf-8"))
