from __future__ import annotations

import pytest
from sample_parts import attempt, result, selection, stats, window
from sample_records import passing, released_defect, run_record

from harness.record.selection import WindowEvidence
from harness.record.verdict import Outcome, Verdict
from reports.console import summary_text
from reports.evidence_tables import evidence_tables
from reports.findings import findings
from reports.summary import summarise, view
from reports.windows import window_text, window_totals


@pytest.mark.parametrize(
    ("windows", "text"),
    [
        ([], ""),
        ([window(0), window(1)], "equal to the limit on all 128 rows"),
        (
            [window(0), window(1, short=64)],
            "cp_rank 1: 64 of 64 rows short, first row 3 sees 1 key of 33 due",
        ),
        (
            [window(0, short=16), window(1, short=64), window(2, short=8), window(3)],
            "cp_rank 1: 64 of 64 rows short, first row 3 sees 1 key of 33 due; also on cp_rank "
            "0, 2",
        ),
        (
            [window(2, long=2)],
            "cp_rank 2: 2 of 64 rows long, first row 3 sees 40 keys of 33 due",
        ),
        (
            [window(0, short=1, long=2)],
            "cp_rank 0: 1 of 64 rows short, 2 of 64 rows long, first row 3 sees 1 key of 33 due",
        ),
        (
            [window(0, short=9), window(1, short=10, microbatch=1)],
            "cp_rank 1, microbatch 1, layer 1: 10 of 64 rows short, first row 3 sees 1 key of 33 "
            "due; also on cp_rank 0",
        ),
        (
            [window(0, short=9, first_different=None)],
            "cp_rank 0: 9 of 64 rows short",
        ),
    ],
)
def test_the_place_with_the_largest_part_of_different_rows_is_named(
    windows: list[WindowEvidence], text: str
) -> None:
    assert window_text(windows) == text


def test_seeds_are_added_up_and_places_are_in_order() -> None:
    totals = window_totals(
        [window(1, short=4), window(1, seed=1), window(0, microbatch=1), window(0, long=3)]
    )
    assert [(t.microbatch, t.cp_rank, t.rows, t.rows_equal, t.first) for t in totals] == [
        (0, 0, 64, 61, (3, 40, 33)),
        (0, 1, 128, 124, (3, 1, 33)),
        (1, 0, 64, 64, None),
    ]
    assert [total.rows_different for total in totals] == [3, 4, 0]


def test_a_known_defect_shows_its_window_in_one_line() -> None:
    item = released_defect()
    lines = [
        line.strip() for line in summary_text(summarise(run_record([item]), [item])).split("\n")
    ]
    place = next(n for n, line in enumerate(lines) if line.startswith("known defect: "))
    assert lines[place + 1] == (
        "kernel window: cp_rank 3: 48 of 64 rows short, first row 3 sees 1 key of 33 due; also on "
        "cp_rank 1, 2"
    )


def test_a_failure_block_shows_the_window_and_one_without_evidence_does_not() -> None:
    picks = (selection(0, stats(below=3)),)
    for windows, expected in (((window(0, short=2),), True), ((), False)):
        found = attempt(Verdict.WRONG_SELECTION, selections=picks, windows=windows)
        item = result("a", [found], Outcome.UNEXPECTED)
        texts = {finding.label: finding.text for finding in findings(item)}
        assert ("window" in texts) is expected
        assert view(item).window == texts.get("window", "")
        assert ("\nwindow      cp_rank 0: 2 of 64" in summary_text(summarise(None, [item]))) is (
            expected
        )


def test_the_table_has_a_row_for_each_place() -> None:
    (table,) = [t for t in evidence_tables(view(released_defect())) if t.title.startswith("Keys")]
    assert table.header[-3:] == ("first different row", "keys shown", "keys due")
    assert table.rows[0] == ("0", "0", "1", "64", "64", "0", "0", "-", "-", "-")
    assert table.rows[3] == ("3", "0", "1", "64", "16", "48", "0", "3", "1", "33")
    titles = {t.title for t in evidence_tables(view(passing()))}
    assert not any(title.startswith("Keys") for title in titles)
