from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from sample_parts import GPU, HOSTILE, attempt, environment, rank, result, selection, stats
from sample_records import (
    ALL,
    crash,
    hang,
    hostile,
    memory_fault,
    not_run,
    passing,
    released_defect,
    run_record,
    wrong_path,
    wrong_selection,
)

from harness.record.evidence import NoteEvidence
from harness.record.phase import Phase
from harness.record.result import ScenarioResult
from harness.record.selection import OverlapSlice
from harness.record.verdict import Outcome, Verdict
from reports.escaping import (
    markdown_code,
    markdown_fence,
    markdown_file,
    markdown_link,
    markdown_text,
)
from reports.markdown import render_markdown
from reports.summary import summarise
from reports.table import MAX_ROWS
from reports.tables import MAX_SELECTION_ROWS
from reports.text import visible

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def report(*results: ScenarioResult, **changes: object) -> str:
    return render_markdown(summarise(run_record(results, **changes), results))


def inline(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from token.children or ()


def structure(text: str) -> list[str]:
    """Kinds of all tokens but plain text: what a page makes of the document."""
    return [token.type for token in inline(PARSER.parse(text)) if token.type != "text"]


def headings(text: str) -> list[str]:
    tokens = PARSER.parse(text)
    return [
        tokens[place + 1].content
        for place, token in enumerate(tokens)
        if token.type == "heading_open"
    ]


def shown_text(text: str) -> str:
    return "".join(
        t.content for t in inline(PARSER.parse(text)) if t.type in ("text", "code_inline")
    )


def tables(text: str) -> list[list[list[str]]]:
    """Cells of every table, row by row, as they are shown."""
    found: list[list[list[str]]] = []
    tokens = PARSER.parse(text)
    for place, token in enumerate(tokens):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in ("th_open", "td_open"):
            found[-1][-1].append("".join(c.content for c in tokens[place + 1].children or ()))
    return found


def table(text: str, first_header: str, title: str) -> list[list[str]]:
    part = text[text.index(f"**{title}") :]
    rows = tables(part)[0]
    assert rows[0][0] == first_header
    return rows


def test_parts_of_a_passing_report() -> None:
    text = report(passing())
    assert headings(text) == [
        "Run 20260501-100000-sample",
        "What this run proves",
        "Results",
        "As expected",
        "Run and environment",
    ]
    assert "**exit code 0: all as expected or known**" in text
    assert "They prove nothing about the kernel itself." in text
    assert "shims: cuda" in text
    assert table(text, "scenario", "Selection per cp_rank")[2] == [
        "quickstart/zigzag[cp4]", "1", "1.0000", "0.9990", "192", "3072", "3069", "3",
    ]  # fmt: skip
    assert table(text, "outcome", "Scenarios")[1] == [
        "expected", "pass", "quickstart/zigzag[cp4]", "packed_thd", "modelled 1.32.0 sm100",
        "1.0000", "0.9990", "1.2 s", "-",
    ]  # fmt: skip
    environment_rows = dict(table(text, "what", "Environment")[1:])
    assert environment_rows["megatron_core"] == "0.19.2"
    assert environment_rows["flash_mla"] == "not found"
    assert environment_rows["gpu"] == "none"
    assert environment_rows["variable OMP_NUM_THREADS"] == "1"


def test_gpus_are_listed() -> None:
    text = report(passing(), environment=environment(gpus=(GPU,)))
    assert ["gpu", "NVIDIA B200, 10.0, 128 GiB, GPU-1"] in table(text, "what", "Environment")


def test_a_crash_has_its_ranks_and_its_command() -> None:
    text = report(crash(), passing())
    assert "### unexpected: crash: `faults/crash[cp4]`" in text
    rows = table(text, "global_rank", "How each rank ended")
    assert rows[3] == [
        "2", "first fault", "n1", "-", "SIGSEGV", "-", "-", "score",
        '{"e": "phase", "phase": "score"}', "ranks/faults_crash/rank2.stacks", "-",
    ]  # fmt: skip
    assert rows[1][1:6] == ["victim", "n1", "-", "SIGKILL by the harness", "-"]
    fences = [token for token in PARSER.parse(text) if token.type == "fence"]
    assert [(fence.info, fence.content) for fence in fences] == [("sh", crash().rerun + "\n")]


def test_odd_ends_of_ranks() -> None:
    ranks = (
        rank(7, exit_code=3, completed=False),
        rank(1, signal=99, exit_code=None, deadline=Phase.SCORE, process_state="T"),
        rank(2, waiting_in_collective=True),
        rank(3, waiting_in_collective=False, process_state="D"),
    )
    item = crash()
    item = replace(item, attempts=(replace(item.last, ranks=ranks),))
    rows = table(report(item), "global_rank", "How each rank ended")
    assert rows[1][1:5] == ["ended early", "n1", "3", "-"]
    assert rows[2][4:7] == ["signal 99", "score", "process state T"]
    assert rows[3][6] == "in a collective"
    assert rows[4][6] == "process state D, not in a collective"


def test_attempts_are_all_kept() -> None:
    rows = table(report(hang()), "attempt", "Attempts")
    assert [row[:2] for row in rows[1:]] == [["1", "hang"], ["2", "hang"]]


def test_evidence_of_a_wrong_selection() -> None:
    text = report(wrong_selection())
    ranks = table(text, "cp_rank", "Overlap per cp_rank, least of 2 seeds")
    assert ranks[1][:4] == ["0", "final", "0.9902", "0.9893"]
    seeds = table(text, "cp_rank", "Overlap per seed")
    assert seeds[1:3] == [["0", "0", "1.0000", "0.9990"], ["0", "1", "0.9902", "0.9893"]]
    halves = table(text, "part", "Overlap by half")
    assert [row[0] for row in halves[1:]] == ["front", "back"]
    assert table(text, "part", "Overlap by sequence")[1][0] == "microbatch 0 sequence 0"
    assert table(text, "part", "Overlap by distance from the query")
    behaviours = table(text, "behaviour", "Known faulty behaviours against the picks")
    assert behaviours[1][:3] == ["chunk_local_window", "no", "40 of 64"]
    paths = table(text, "cp_rank", "Path")
    assert paths[1][0] == "0..3"
    assert paths[1][-1] == "one fused call per segment"


def test_known_defects_have_their_own_part() -> None:
    text = report(released_defect())
    assert "Known defects" in headings(text)
    assert "To act on" not in headings(text)
    assert "rows exhaustive 64 of 64 exact" in text
    ranks = table(text, "cp_rank", "Overlap per cp_rank")
    assert [row[1] for row in ranks[1:]] == ["final"] * 4 + ["wrapper"] * 4


def test_not_run_and_lost_results_are_listed_together() -> None:
    text = report(not_run(), scenario_ids=(not_run().id, "lost"), exit_code=None)
    rows = table(text, "scenario", "Not run")
    assert rows[1] == ["graph/capture[cp4]", "a CUDA device"]
    assert rows[2][0] == "lost"
    assert "not run: the run" not in text
    assert "exit code unknown" in text


def test_wrong_path_and_address_evidence() -> None:
    text = report(wrong_path(), memory_fault())
    assert "plan unfused_bounds (inferred)" in text
    assert "element offset 4096 is outside 0 to 4095" in shown_text(text)
    assert "In full, traceback of the first faulty rank:" in text


def test_a_harness_error_shows_its_traceback() -> None:
    note = NoteEvidence(topic="harness error", text="Traceback\n  line\nKeyError: 'a'\n")
    broken = attempt(Verdict.HARNESS_ERROR, paths=(), notes=(note,))
    text = report(result("a", [broken], Outcome.UNEXPECTED))
    assert "harness error: KeyError: 'a'" in text
    assert "```text\nTraceback\n  line\nKeyError: 'a'\n```" in text


def test_long_tables_are_cut_with_the_worst_kept() -> None:
    parts = tuple(
        OverlapSlice(name=f"sequence {n}", stats=stats(below=n)) for n in range(MAX_ROWS + 5)
    )
    picked = replace(selection(0, stats(below=5)), by_sequence=parts)
    item = result("a", [attempt(Verdict.WRONG_SELECTION, selections=(picked,))], Outcome.UNEXPECTED)
    text = report(item)
    rows = table(text, "part", "Overlap by sequence")
    assert len(rows) == MAX_ROWS + 1
    assert rows[1][0] == f"microbatch 0 sequence {MAX_ROWS + 4}"
    assert "5 more rows are in the result file." in text
    many = [passing(f"p/{n}") for n in range(MAX_SELECTION_ROWS // 4 + 1)]
    assert "4 more rows are in the result file." in report(*many)
    assert "more rows" not in report(*many[:-1])


@pytest.mark.parametrize("maker", ALL)
def test_every_table_is_even_and_no_html_is_made(maker: object) -> None:
    text = report(maker())  # type: ignore[operator]
    found = tables(text)
    # As many tables as titles: no row has ended a table early, none has been added.
    assert len(found) == len(re.findall(r"^\*\*[A-Z][^*\n]*\*\*$", text, flags=re.MULTILINE))
    for rows in found:
        assert {len(row) for row in rows} == {len(rows[0])}
    assert not {"html_block", "html_inline", "image"} & set(structure(text))
    assert all(line.isprintable() for line in text.split("\n"))
    assert "\n\n\n" not in text


def spoiled(text: str) -> ScenarioResult:
    """The hostile sample with another text in the places that a scenario file fills."""
    return replace(
        hostile(),
        id=f"x{text}",
        summary=text,
        explanation=f"so {text}",
        expected=text,
        file=text,
        source=(text,),
    )


def test_hostile_text_changes_no_structure() -> None:
    plain = structure(report(spoiled("plain")))
    assert "link_open" in plain
    odd = structure(report(spoiled(HOSTILE)))
    # A code span that cannot hold the text becomes prose; nothing else may differ.
    assert [kind for kind in odd if kind != "code_inline"] == [
        kind for kind in plain if kind != "code_inline"
    ]


def test_hostile_text_is_shown_in_full() -> None:
    text = shown_text(report(hostile()))
    assert text.count(visible(HOSTILE)) > 20
    assert "\x1b" not in text


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=30))
def test_any_text_stays_text(text: str) -> None:
    line = f"| a {markdown_text(text)} | b {markdown_code(text)} |\n| --- | --- |\n"
    rows = tables(line)
    assert rows == [[[f"a {visible(text) or '-'}", f"b {visible(text) or '-'}"]]]
    kinds = set(structure(f"say {markdown_text(text)}: end"))
    assert kinds <= {"paragraph_open", "paragraph_close", "inline"}


@settings(deadline=None)
@given(st.text(alphabet=st.sampled_from("`~ab\n \t|"), max_size=60))
def test_no_text_closes_its_fence(text: str) -> None:
    tokens = PARSER.parse(f"{markdown_fence(text)}\n\nafter\n")
    assert [token.type for token in tokens][:2] == ["fence", "paragraph_open"]


def test_fences_keep_the_last_lines() -> None:
    assert markdown_fence("a\nb\n", "sh") == "```sh\na\nb\n```"
    assert markdown_fence("a\nb\nc", max_lines=2) == "```text\n... 1 lines before\nb\nc\n```"
    assert markdown_fence("```") == "````text\n```\n````"


def test_links_only_of_plain_addresses() -> None:
    good = "https://github.com/NVIDIA/Megatron-LM/pull/6206"
    assert markdown_link(good) == f"<{good}>"
    for odd in ("javascript:alert(1)", "https://a b", "https://a>x", "http://plain", "a|b"):
        assert "link_open" not in structure(f"say {markdown_link(odd)} end")
    assert markdown_file("results/a~1.json") == "[`results/a~1.json`](results/a~1.json)"
    assert "link_open" not in structure(f"say {markdown_file('a) [x](http://e')} end")


def test_report_of_nothing() -> None:
    text = render_markdown(summarise(None, []))
    assert headings(text)[0] == "Run without a readable run.json"
    assert "exit code unknown" in text
