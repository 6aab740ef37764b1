"""Figures show the evidence to scale, and nothing but it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from page_records import PHASES, dynamic_cp, many_ranks, spread_over, stopped
from sample_parts import attempt, rank, result, scenario, selection, stats
from sample_records import passing, released_defect

from harness.layout import pack_sequences, padded_length, rank_segments
from harness.record.codec import to_jsonable
from harness.record.phase import Phase
from harness.record.result import PhaseTiming, ScenarioResult
from harness.record.selection import OverlapStats, RowFinding
from harness.record.verdict import Outcome, Verdict
from harness.scenario.spec import MicrobatchSpec, ParallelSpec
from reports.html.colours import ink_on, luminance, overlap_colour, series
from reports.html.drawing import Box, Drawing
from reports.html.heat_figure import MAX_ROWS, heat_drawings
from reports.html.layout_figure import layout_drawings
from reports.html.row_figure import row_drawing
from reports.html.timeline_figure import MAX_RANKS, timeline_drawing


def of_layout(lengths: tuple[int, ...], cp_size: int, **changes: object) -> ScenarioResult:
    spec = replace(
        scenario("a"),
        parallel=ParallelSpec(context_parallel_size=cp_size),
        microbatches=(MicrobatchSpec(sequences=lengths, **changes),),  # type: ignore[arg-type]
    )
    return result("a", passing().attempts, Outcome.EXPECTED, scenario=to_jsonable(spec))


def by_line(drawing: Drawing) -> dict[float, list[Box]]:
    lines: dict[float, list[Box]] = defaultdict(list)
    for box in drawing.boxes:
        lines[box.y].append(box)
    return dict(sorted(lines.items()))


def inside(drawing: Drawing) -> None:
    for box in drawing.boxes:
        assert box.x >= -0.01
        assert box.x + box.width <= drawing.width + 0.01
        assert box.y + box.height <= drawing.height + 0.01
        assert box.width >= 0


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=5),
    st.sampled_from([1, 2, 3, 4, 8]),
    st.integers(0, 3),
)
def test_every_line_of_a_layout_covers_the_pack_once(
    lengths: list[int], cp_size: int, tail: int
) -> None:
    item = of_layout(tuple(lengths), cp_size, tail_padding=tail * cp_size)
    drawings = layout_drawings(item)
    padded = sum(padded_length(n, cp_size) for n in lengths)
    if not padded + tail:
        assert drawings == ()
        return
    (drawing,) = drawings
    inside(drawing)
    scale = (900 - 92) / (padded + tail * cp_size)
    for place, boxes in enumerate(by_line(drawing).values()):
        boxes.sort(key=lambda box: box.x)
        for before, after in pairwise(boxes):
            assert after.x >= before.x + before.width - 0.01, "no two boxes overlap"
        # The split into halves leaves the tail out; all other lines are full.
        due = padded if place == 1 and padded else padded + tail * cp_size
        assert sum(box.width for box in boxes) == pytest.approx(due * scale, abs=0.1)


def test_padding_and_halves_of_a_layout() -> None:
    (drawing,) = layout_drawings(of_layout((698,), 4))
    lines = list(by_line(drawing).values())
    real, padding = lines[0]
    assert (real.text, real.hatched, padding.hatched) == ("0: 698", False, True)
    assert padding.width / real.width == pytest.approx(6 / 698)
    assert [box.text for box in sorted(lines[1], key=lambda b: b.x)] == list("01233210")
    assert "back half, cp_rank 0: rows 616 to 703" in lines[1][1].title
    # Rank 0 holds the padding, at the end of its back half.
    assert [box.hatched for box in sorted(lines[2], key=lambda b: b.x)] == [False, False, True]
    segment = rank_segments(pack_sequences([698], cp_size=4), 1)[1]
    assert f"causal offset {segment.causal_offset}" in lines[3][1].title
    assert drawing.says.startswith("1 sequence of 698 tokens, 6 rows of padding, 704 rows in all")


def test_a_history_is_drawn_once_per_layout() -> None:
    drawings = layout_drawings(dynamic_cp())
    assert [d.title for d in drawings] == [
        "Layout of microbatch 0, 2", "Layout of microbatch 1", "Layout of microbatch 3",
    ]  # fmt: skip
    assert drawings[-1].note == "1 further layout not drawn"
    assert [len(by_line(d)) for d in drawings] == [2 + 2, 2 + 8, 2 + 4]


@pytest.mark.parametrize("cp_size", [1, 9, 32, 512])
def test_any_number_of_ranks_is_drawn(cp_size: int) -> None:
    item = many_ranks(cp_size)
    (drawing,) = layout_drawings(item)
    inside(drawing)
    assert len(drawing.boxes) < 400
    by_sequence = heat_drawings(item.last.selections)[0]
    assert len(by_line(by_sequence)) <= MAX_ROWS
    inside(by_sequence)
    timeline = timeline_drawing(item.last)
    assert timeline is not None
    assert len(by_line(timeline)) == min(cp_size, MAX_RANKS)
    inside(timeline)


def test_cells_hold_their_numbers_and_groups_their_least() -> None:
    picks = [spread_over(n, 0, 2, 512 if n == 5 else 0) for n in range(64)]
    drawing = next(d for d in heat_drawings(picks) if "sequence" in d.title)
    assert [label.text for label in drawing.labels if "cp_rank" in label.text] == [
        "cp_rank 0..4", "cp_rank 5", "cp_rank 6..63",
    ]  # fmt: skip
    bad = [box for box in drawing.boxes if box.text != "1.0000"]
    assert [box.text for box in bad] == ["0.5000"]
    assert bad[0].title == "cp_rank 5, sequence 1: overlap 0.5000, 512 of 1024 due found"
    assert "least of them" in drawing.note
    small = heat_drawings(picks[:4])[0]
    assert small.note == ""
    assert len(small.boxes) == 8


def test_too_many_different_ranks_are_drawn_together_by_place() -> None:
    picks = [spread_over(n, 0, 2, n) for n in range(100)]
    drawing = next(d for d in heat_drawings(picks) if "sequence" in d.title)
    assert len(by_line(drawing)) == 25
    last = drawing.boxes[-1]
    assert last.title.startswith("cp_rank 96..99, sequence 1: overlap 0.9033, ")


def test_gaps_between_ranks_are_not_drawn_over() -> None:
    picks = [spread_over(n, 0, 2, 0) for n in (0, 1, 2, 3, 8, 9, 10, 11, 31)]
    drawing = next(d for d in heat_drawings(picks) if "sequence" in d.title)
    assert [label.text for label in drawing.labels if "cp_rank" in label.text] == [
        "cp_rank 0..3", "cp_rank 8..11", "cp_rank 31",
    ]  # fmt: skip


def test_the_worst_maps_come_first() -> None:
    drawings = heat_drawings(dynamic_cp().last.selections)
    assert [d.title.partition(", ")[2] for d in drawings] == [
        "microbatch 3", "microbatch 3", "microbatch 0",
    ]  # fmt: skip
    assert drawings[-1].note == "5 maps with no less overlap not drawn"


def test_seeds_and_layers_are_added_up_and_stages_kept_apart() -> None:
    picks = [
        spread_over(0, 0, 2, 512),
        replace(spread_over(0, 0, 2, 0), seed=1),
        replace(spread_over(0, 0, 2, 1024), stage="wrapper"),
    ]
    drawing = next(d for d in heat_drawings(picks) if "sequence" in d.title)
    assert [box.text for box in drawing.boxes] == ["1.0000", "0.7500"]


def test_one_cell_is_no_map() -> None:
    assert heat_drawings([selection(0, stats())]) == ()
    assert heat_drawings([]) == ()


def test_picks_due_and_limit_of_rows() -> None:
    row = RowFinding(
        row=3, position=9, sequence=1, limit=10, picked=(0, 9, -2, 12), wrong=(-2, 12), due=(4,)
    )
    record = replace(selection(1, stats(future=2)), worst_rows=(row,))
    drawing = row_drawing([selection(0, stats()), record])
    assert drawing is not None
    inside(drawing)
    assert sorted((mark.kind, mark.title) for mark in drawing.marks) == [
        ("cross", "key -2: picked, wrong"),
        ("cross", "key 12: picked, wrong"),
        ("dot", "key 0: picked, right"),
        ("dot", "key 9: picked, right"),
        ("ring", "key 4: due, not picked"),
    ]
    (visible,) = drawing.boxes
    places = {mark.title.split(":")[0]: mark.x for mark in drawing.marks}
    assert places["key -2"] < visible.x <= places["key 0"]
    assert places["key 9"] < visible.x + visible.width < places["key 12"]
    assert row_drawing([selection(0, stats())]) is None


def test_rows_of_several_ranks_are_drawn() -> None:
    drawing = row_drawing(released_defect().last.selections)
    assert drawing is not None
    assert [label.text for label in drawing.labels if "row" in label.text] == [
        "cp_rank 3, row 17", "cp_rank 2, row 17", "cp_rank 1, row 17",
    ]  # fmt: skip


def test_phases_stand_where_they_were() -> None:
    drawing = timeline_drawing(attempt(Verdict.PASS, ranks=(rank(0, phases=PHASES),)))
    assert drawing is not None
    inside(drawing)
    assert len(drawing.boxes) == len(PHASES)
    widths = {round(box.width, 3) for box in drawing.boxes}
    assert len(widths) == 1
    assert timeline_drawing(attempt(Verdict.PASS, ranks=())) is None


def test_a_phase_that_never_ended_is_told() -> None:
    drawing = timeline_drawing(stopped().last)
    assert drawing is not None
    texts = [label.text for label in drawing.labels]
    assert texts[:2] == ["global_rank 0 (victim)", "global_rank 1 (fault)"]
    assert [box.title for box in drawing.boxes if "never ended" in box.title] == [
        "global_rank 0: gather, 9.000 s, never ended",
        "global_rank 1: gather, 8.500 s, never ended",
    ]
    assert "never ended" in [key.text for key in drawing.keys]


def test_clocks_of_hosts_are_not_compared() -> None:
    late = tuple(replace(p, begin_s=p.begin_s + 5000, end_s=(p.end_s or 0) + 5000) for p in PHASES)
    ranks = (rank(0, host="a", phases=PHASES), rank(1, host="b", phases=late))
    drawing = timeline_drawing(attempt(Verdict.PASS, ranks=ranks))
    assert drawing is not None
    assert drawing.says == "2 ranks, 1.40 s from the first line to the last"
    assert "each host's clock" in drawing.note


def test_thousands_of_phases_stay_few_boxes() -> None:
    phases = tuple(
        PhaseTiming(
            phase=Phase.SCORE if n % 2 else Phase.GATHER, begin_s=n / 10, end_s=n / 10 + 0.1
        )
        for n in range(3000)
    )
    drawing = timeline_drawing(attempt(Verdict.PASS, ranks=(rank(0, phases=phases),)))
    assert drawing is not None
    assert len(drawing.boxes) < 300
    assert "drawn together" in drawing.note
    covered = sum(box.width for box in drawing.boxes)
    assert covered == pytest.approx(900 - 150, rel=0.02)


@pytest.mark.parametrize("number", [1, 2, 8, 16])
def test_text_can_be_read_on_every_colour(number: int) -> None:
    colours = [*series(number), *(overlap_colour(n / 100) for n in range(101))]
    for colour in colours:
        light, dark = sorted((luminance(colour), luminance(ink_on(colour))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


_SIGHT = {
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
               (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                 (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
                (0.004733, 0.691367, 0.303900)),
}  # fmt: skip
"""What is seen of linear red, green and blue (Machado, Oliveira and Fernandes 2009, severity 1)."""


def seen(colour: str, sight: str) -> tuple[float, float, float]:
    """CIE L*a*b* of a colour as people of some sight see it."""
    raw = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in raw]
    r, g, b = (
        min(1.0, max(0.0, sum(w * v for w, v in zip(row, linear, strict=True))))
        for row in _SIGHT[sight]
    )
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def distance(first: str, second: str, sight: str) -> float:
    pairs = zip(seen(first, sight), seen(second, sight), strict=True)
    return sum((a - b) ** 2 for a, b in pairs) ** 0.5


@pytest.mark.parametrize("sight", _SIGHT)
def test_colours_can_be_told_apart_by_any_sight(sight: str) -> None:
    for first, second in combinations(series(6), 2):
        assert distance(first, second, sight) > 10, (first, second)
    full, lost = overlap_colour(1.0), [overlap_colour(n / 20) for n in range(20)]
    assert all(distance(full, colour, sight) > 10 for colour in lost)
    steps = [seen(colour, sight)[0] for colour in lost]
    assert steps == sorted(steps), "lightness alone tells how much is lost"


def test_empty_statistics_count_as_nothing_lost() -> None:
    assert OverlapStats(rows=0).overlap == 1.0
    assert overlap_colour(1.0) != overlap_colour(0.9999)
