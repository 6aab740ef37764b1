from __future__ import annotations

import doctest
import types
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_parts import HOSTILE

import harness.record.files
import reports.proof
import reports.text
from reports.text import last_line, number_ranges, ratio, shorten, visible, visible_lines


@pytest.mark.parametrize("module", [reports.text, reports.proof, harness.record.files])
def test_examples_in_docstrings_hold(module: types.ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


@settings(deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=[])))
def test_visible_text_hides_nothing_and_can_be_written(text: str) -> None:
    line = visible(text)
    assert not {"Cc", "Cf", "Cs", "Zl", "Zp"} & {unicodedata.category(c) for c in line}
    line.encode()


def test_visible_keeps_what_is_harmless() -> None:
    assert visible("naïve 文字 🙂 a\tb\r\nc") == "naïve 文字 🙂 a b c"
    assert visible("\x1b[31m\x07\x9b \u202e \u200b \ud800") == (
        "\\x1b[31m\\x07\\x9b \\u202e \\u200b \\ud800"
    )


def test_visible_lines_keep_lines_and_indentation() -> None:
    assert visible_lines("a\r\n    b\n\tc \n\x1b") == ["a", "    b", "    c", "\\x1b"]


def test_shorten_marks_the_cut() -> None:
    assert shorten("abc", 10) == "abc"
    assert shorten("abcdefghij", 10) == "abcdefghij"
    assert shorten("abcdefghijk", 10) == "abcdef ..."
    assert len(shorten(HOSTILE * 9, 50)) <= 50


@settings(deadline=None)
@given(st.floats(min_value=0.0, max_value=1.0))
def test_a_ratio_never_rounds_to_perfect(value: float) -> None:
    shown = ratio(value)
    assert (shown == "1.0000") == (value == 1.0)
    assert (shown == "0.0000") == (value == 0.0)
    assert abs(float(shown) - value) <= 1e-4


def test_small_formats() -> None:
    assert number_ranges([3, 1, 2, 9, 9]) == "1..3, 9"
    assert number_ranges([1, 2]) == "1, 2"
    assert number_ranges([]) == ""
    assert last_line("") == ""
    assert last_line("a\n  \n") == "a"
