"""The layout of a microbatch drawn to scale: sequences, padding, and whose rows are where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from harness.layout import LayoutError, Pack, Segment, rank_segments
from harness.record.codec import DecodeError, from_jsonable
from harness.record.result import ScenarioResult
from harness.scenario.rules.lengths import build_pack
from harness.scenario.spec import MicrobatchSpec
from reports.html.colours import ink_on, series
from reports.html.drawing import TEXT_HEIGHT, Box, Drawing, Key, Label
from reports.text import counted, number_ranges

MAX_MICROBATCHES = 3
"""Most microbatches that are drawn; those with a layout drawn already are named instead."""
MAX_GROUPS = 16
"""Most groups of ranks with a colour of their own."""
MAX_BOXES = 600
"""Most rectangles of one microbatch; packs that need more are drawn without halves."""

_WIDTH = 900.0
_LEFT = 92.0
_BAR = 24.0
_GAP = 8.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Microbatch:
    numbers: tuple[int, ...]
    pack: Pack


def layout_drawings(result: ScenarioResult) -> tuple[Drawing, ...]:
    """Return a figure for each distinct layout of a scenario, as far as it can be built."""
    found = _microbatches(result)
    drawings = [_drawing(item) for item in found[:MAX_MICROBATCHES]]
    if len(found) > MAX_MICROBATCHES and drawings:
        left_out = counted(len(found) - MAX_MICROBATCHES, "further layout")
        last = drawings[-1]
        drawings[-1] = replace(last, note=f"{last.note}; {left_out} not drawn".lstrip("; "))
    return tuple(drawings)


def packs_of(result: ScenarioResult) -> tuple[Pack | None, ...]:
    """Return the pack of each microbatch, None for one that no pack can be built of."""
    return tuple(_packs(result.scenario))


def _packs(scenario: dict[str, object]) -> Iterator[Pack | None]:
    parallel = scenario.get("parallel")
    configured = parallel.get("context_parallel_size") if isinstance(parallel, dict) else None
    entries = scenario.get("microbatches")
    for data in entries if isinstance(entries, list) else []:
        try:
            microbatch = from_jsonable(MicrobatchSpec, data)
            cp_size = microbatch.cp or configured
            yield build_pack(microbatch, cp_size) if isinstance(cp_size, int) else None
        except (DecodeError, LayoutError, IndexError):
            # A scenario may be about lengths that no pack can have, or come from a later version.
            yield None


def _microbatches(result: ScenarioResult) -> list[_Microbatch]:
    numbers: dict[Pack, list[int]] = {}
    for number, pack in enumerate(packs_of(result)):
        if pack is not None and pack.total_q:
            numbers.setdefault(pack, []).append(number)
    return [_Microbatch(numbers=tuple(found), pack=pack) for pack, found in numbers.items()]


def _drawing(item: _Microbatch) -> Drawing:
    pack = item.pack
    groups = _groups(pack.cp_size)
    colours = series(len(groups))
    boxes = list(_sequence_boxes(pack))
    halves = list(_half_boxes(pack, groups, colours))
    ranks = _shown_ranks(pack.cp_size)
    rows = [
        box
        for line, rank in enumerate(ranks)
        for box in _rank_boxes(pack, rank, line, colours[_group_of(rank, groups)])
    ]
    notes = []
    if len(halves) > MAX_BOXES:
        notes.append("too many chunks to draw, so the halves are not shown")
        halves = []
    if len(rows) > MAX_BOXES:
        rows = rows[:MAX_BOXES]
        notes.append("rows of the ranks are cut")
    if len(groups) < pack.cp_size:
        notes.append(f"{pack.cp_size} ranks drawn together in {len(groups)} groups")
    if len(ranks) < pack.cp_size:
        notes.append(f"rows shown of cp_rank {number_ranges(ranks)}")
    top = _rank_top()
    height = top + len(ranks) * (_BAR + 4) + 4
    keys = [
        Key(text=f"cp_rank {number_ranges(group)}", fill=colour)
        for group, colour in zip(groups, colours, strict=True)
    ]
    return Drawing(
        title=f"Layout of microbatch {number_ranges(item.numbers)}",
        says=_says(pack),
        width=_WIDTH,
        height=height,
        boxes=(*boxes, *halves, *rows),
        labels=(
            Label(x=0, y=_baseline(0), text="sequences"),
            *([Label(x=0, y=_baseline(_BAR + _GAP), text="split")] if halves else []),
            *(
                Label(x=0, y=_baseline(top + line * (_BAR + 4)), text=f"cp_rank {rank}")
                for line, rank in enumerate(ranks)
            ),
        ),
        keys=(*keys, Key(text="padding", hatched=True)),
        note="; ".join(notes),
    )


def _says(pack: Pack) -> str:
    lengths = ", ".join(map(str, pack.q_lengths[:12]))
    more = f" and {pack.num_sequences - 12} more" if pack.num_sequences > 12 else ""
    padding = pack.total_q - sum(pack.q_lengths)
    return (
        f"{counted(pack.num_sequences, 'sequence')} of {lengths}{more} tokens, "
        f"{counted(padding, 'row')} of padding, {pack.total_q} rows in all, "
        f"{pack.rows_per_rank} on each of {counted(pack.cp_size, 'cp_rank')}"
    )


def _groups(cp_size: int) -> list[range]:
    """Share the ranks out over at most ``MAX_GROUPS`` groups of neighbours."""
    size = -(-cp_size // MAX_GROUPS)
    return [range(start, min(start + size, cp_size)) for start in range(0, cp_size, size)]


def _group_of(rank: int, groups: Sequence[range]) -> int:
    return rank // len(groups[0])


def _shown_ranks(cp_size: int) -> tuple[int, ...]:
    if cp_size <= 8:
        return tuple(range(cp_size))
    return (0, 1, 2, 3, *range(cp_size - 4, cp_size))


def _baseline(top: float) -> float:
    return top + (_BAR + TEXT_HEIGHT) / 2 - 2


def _rank_top() -> float:
    return 2 * (_BAR + _GAP) + _GAP


def _scaled(pack: Pack, begin: int, length: int) -> tuple[float, float]:
    scale = (_WIDTH - _LEFT) / pack.total_q
    return _LEFT + begin * scale, length * scale


def _sequence_boxes(pack: Pack) -> Iterator[Box]:
    begin = 0
    for number, (real, padded) in enumerate(zip(pack.q_lengths, pack.q_padded, strict=True)):
        x, width = _scaled(pack, begin, real)
        title = f"sequence {number}: {real} tokens, padded to {padded}"
        text = f"{number}: {real}"
        yield Box(x=x, y=0, width=width, height=_BAR, fill="#d9d9d9", title=title, text=text)
        if padded > real:
            yield _padding(pack, begin + real, padded - real, 0, title)
        begin += padded
    if pack.tail_padding:
        title = f"tail padding: {pack.tail_padding} rows that no sequence owns"
        yield _padding(pack, begin, pack.tail_padding, 0, title)


def _padding(pack: Pack, begin: int, length: int, y: float, title: str) -> Box:
    x, width = _scaled(pack, begin, length)
    return Box(x=x, y=y, width=width, height=_BAR, hatched=True, title=title)


def _half_boxes(pack: Pack, groups: list[range], colours: Sequence[str]) -> Iterator[Box]:
    """Chunks of every sequence in packed order, neighbours of one group drawn together."""
    y = _BAR + _GAP
    begin = 0
    for number, padded in enumerate(pack.q_padded):
        if not padded:
            continue
        chunk = padded / (2 * pack.cp_size) if pack.cp_size > 1 else padded
        for group, colour in zip(groups, colours, strict=True):
            for half, first in _places(pack.cp_size, group):
                offset = round(first * chunk)
                length = round(len(group) * chunk)
                x, width = _scaled(pack, begin + offset, length)
                who = f"cp_rank {number_ranges(group)}"
                yield Box(
                    x=x,
                    y=y,
                    width=width,
                    height=_BAR,
                    fill=colour,
                    ink=ink_on(colour),
                    title=f"sequence {number}, {half}, {who}: rows {offset} to "
                    f"{offset + length - 1} of the sequence",
                    text=f"{group[0]}" if len(group) == 1 else f"{group[0]}..{group[-1]}",
                )
        begin += padded


def _places(cp_size: int, group: range) -> tuple[tuple[str, int], ...]:
    """Return where a group's chunks lie in a sequence: front in order, back mirrored."""
    if cp_size == 1:
        return (("whole", 0),)
    return ("front half", group[0]), ("back half", 2 * cp_size - 1 - group[-1])


def _rank_boxes(pack: Pack, rank: int, line: int, colour: str) -> Iterator[Box]:
    """A rank's local rows, on the scale of the whole pack times the number of ranks."""
    y = _rank_top() + line * (_BAR + 4)
    for segment in rank_segments(pack, rank):
        if segment.valid_rows:
            yield _segment_box(pack, segment, y, colour)
        if segment.padding_rows:
            start = segment.row_start + segment.valid_rows
            title = f"{_segment_name(segment)}: {counted(segment.padding_rows, 'row')} of padding"
            yield _padding(
                pack, start * pack.cp_size, segment.padding_rows * pack.cp_size, y, title
            )


def _segment_box(pack: Pack, segment: Segment, y: float, colour: str) -> Box:
    x, width = _scaled(
        pack, segment.row_start * pack.cp_size, segment.valid_rows * pack.cp_size
    )  # fmt: skip
    last = segment.limit(segment.valid_rows - 1)
    return Box(
        x=x,
        y=y,
        width=width,
        height=_BAR,
        fill=colour,
        ink=ink_on(colour),
        title=f"{_segment_name(segment)}: local rows {segment.row_start} to "
        f"{segment.row_start + segment.valid_rows - 1}, causal offset {segment.causal_offset}, "
        f"limits {segment.limit(0)} to {last}",
        text=f"{segment.sequence} {segment.half}",
    )


def _segment_name(segment: Segment) -> str:
    return "tail" if segment.is_tail else f"sequence {segment.sequence}, {segment.half}"
