"""Phases of each rank over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.record.phase import Phase
from harness.record.result import Attempt, PhaseTiming, RankOutcome
from reports.html.colours import PLAIN, WRONG, ink_on, series
from reports.html.drawing import Box, Drawing, Key, Label, Rule
from reports.text import counted, number_ranges

MAX_PHASES = 120
"""Most phases of a rank that are drawn one by one."""
MAX_RANKS = 16
"""Most ranks that are drawn: the first fault, some victims, the slowest."""

_WIDTH = 900.0
_LEFT = 150.0
_LINE = 22.0
_TOP = 18.0
_BUSY = (
    Phase.BUILD, Phase.GATHER, Phase.SCORE, Phase.SELECT, Phase.ATTEND, Phase.BACKWARD,
    Phase.COMPARE, Phase.COMPILE,
)  # fmt: skip
"""Phases with a colour of their own."""


def timeline_drawing(attempt: Attempt) -> Drawing | None:
    """Return the phases of the ranks of an attempt, None where none was recorded.

    Clocks of hosts do not compare, so every host's ranks are drawn from that host's first line.
    """
    ranks = [rank for rank in attempt.ranks if rank.phases]
    if not ranks:
        return None
    begins = _begins(ranks)
    spans = [(rank, _end(rank) - begins[rank.host]) for rank in ranks]
    total = max(span for _, span in spans) or 1e-3
    shown = _shown(attempt, spans)
    boxes: list[Box] = []
    labels: list[Label] = []
    colours = dict(zip(_BUSY, series(len(_BUSY)), strict=True))
    for line, rank in enumerate(shown):
        y = _TOP + line * _LINE
        labels.append(
            Label(x=0, y=y + 14, text=f"global_rank {rank.global_rank}{_role(attempt, rank)}")
        )
        boxes += _rank_boxes(rank, begins[rank.host], total, y, colours)
    ticks = [total * part / 4 for part in range(5)]
    rules = [
        Rule(x1=_at(t, total), x2=_at(t, total), y1=_TOP - 3, y2=_TOP + len(shown) * _LINE)
        for t in ticks
    ]  # fmt: skip
    labels += [
        Label(
            x=_at(tick, total),
            y=_TOP - 6,
            text=f"{tick:.2f} s",
            anchor="start" if tick == 0 else "end" if tick == total else "middle",
        )
        for tick in ticks
    ]
    used = {timing.phase for rank in shown for timing in rank.phases}
    notes = []
    if len(shown) < len(ranks):
        notes.append(f"shown are global_rank {number_ranges(r.global_rank for r in shown)}")
    if any(len(rank.phases) > MAX_PHASES for rank in shown):
        notes.append("short phases are drawn together with those that follow them")
    if len(begins) > 1:
        notes.append("each host's clock starts with its first rank")
    return Drawing(
        title="Phases over time",
        says=f"{counted(len(ranks), 'rank')}, {total:.2f} s from the first line to the last",
        width=_WIDTH,
        height=_TOP + len(shown) * _LINE + 4,
        boxes=tuple(boxes),
        labels=tuple(labels),
        rules=tuple(rules),
        keys=(
            *(Key(text=str(phase), fill=colours[phase]) for phase in _BUSY if phase in used),
            Key(text="other phases", fill=PLAIN),
            *([Key(text="never ended", fill=WRONG)] if _open(shown) else []),
        ),
        note="; ".join(notes),
    )


def _merged(rank: RankOutcome, total: float) -> tuple[PhaseTiming, ...]:
    """Draw slivers together with what follows them, where a rank has very many phases."""
    if len(rank.phases) <= MAX_PHASES:
        return rank.phases
    least = total / MAX_PHASES
    found: list[PhaseTiming] = []
    for timing in rank.phases:
        if found and timing.end_s is not None and _is_shorter(found[-1], least):
            found[-1] = replace(found[-1], end_s=timing.end_s)
        else:
            found.append(timing)
    return tuple(found)


def _is_shorter(timing: PhaseTiming, time_s: float) -> bool:
    return timing.end_s is not None and timing.end_s - timing.begin_s < time_s


def _begins(ranks: Sequence[RankOutcome]) -> dict[str, float]:
    begins: dict[str, float] = {}
    for rank in ranks:
        first = rank.phases[0].begin_s
        begins[rank.host] = min(begins.get(rank.host, first), first)
    return begins


def _end(rank: RankOutcome) -> float:
    last = rank.phases[-1]
    known = [time for time in (last.end_s, rank.ended_s) if time is not None]
    return max([last.begin_s, *known])


def _open(ranks: Sequence[RankOutcome]) -> bool:
    return any(timing.end_s is None for rank in ranks for timing in rank.phases)


def _shown(attempt: Attempt, spans: list[tuple[RankOutcome, float]]) -> list[RankOutcome]:
    """The ranks to draw: the first fault, then the slowest, in rank order."""
    first = None if attempt.fault is None else attempt.fault.global_rank
    urgent = sorted(spans, key=lambda pair: (pair[0].global_rank != first, -pair[1]))
    chosen = [rank for rank, _ in urgent[:MAX_RANKS]]
    return sorted(chosen, key=lambda rank: rank.global_rank)


def _role(attempt: Attempt, rank: RankOutcome) -> str:
    if attempt.fault is None:
        return ""
    if rank.global_rank == attempt.fault.global_rank:
        return " (fault)"
    return " (victim)" if rank.global_rank in attempt.fault.victims else ""


def _at(time: float, total: float) -> float:
    return _LEFT + time / total * (_WIDTH - _LEFT)


def _rank_boxes(
    rank: RankOutcome, begin: float, total: float, y: float, colours: dict[Phase, str]
) -> list[Box]:
    boxes = []
    for timing in _merged(rank, total):
        end = _end(rank) if timing.end_s is None else timing.end_s
        start, stop = _at(timing.begin_s - begin, total), _at(end - begin, total)
        ended = "" if timing.end_s is not None else ", never ended"
        colour = WRONG if ended else colours.get(timing.phase, PLAIN)
        boxes.append(
            Box(
                x=start,
                y=y,
                width=max(0.5, stop - start),
                height=_LINE - 4,
                fill=colour,
                ink=ink_on(colour),
                title=f"global_rank {rank.global_rank}: {timing.phase}, "
                f"{end - timing.begin_s:.3f} s{ended}",
                text=str(timing.phase),
            )
        )
    return boxes
