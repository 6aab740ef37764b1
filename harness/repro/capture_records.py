"""What a capture says of a job: its ranks, what each was given in order, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class CaptureError(ValueError):
    """A capture cannot be used as asked; one line says why, and what to change."""


@dataclass(kw_only=True, slots=True)
class Died:
    """The exception that ended a call, or the process.

    Attributes:
        type: Class name.
        frames: ``file:line:function``, the innermost last.
        statement: Source of the innermost frame.
        time_s: Seconds of wall time.
        layer: Layer at work, None outside all of them.
    """

    type: str
    text: str
    frames: tuple[str, ...]
    statement: str
    time_s: float
    layer: int | None = None


@dataclass(kw_only=True, slots=True)
class Microbatch:
    """One forward on one rank.

    Attributes:
        number: From 0, as the rank counted.
        facts: The line itself.
        lists: Boundaries and maxima that landed, by name.
        missing: Name of a list to why it is not here.
        entered: Layers that were entered, in order; replays by backward not among them.
        left: Of these, those that came back.
        replayed: Layers entered again by backward.
        has_backward: Whether its backward reached the first layer's attention.
        scores: Statistics of score matrices.
        num_scores_due: Score matrices whose statistics were begun, as far as layers came back.
        tensors: Kept tensors, by file.
        died: The exception that ended it.
    """

    number: int
    facts: dict[str, Any]
    lists: dict[str, list[int]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    entered: list[int] = field(default_factory=list)
    left: set[int] = field(default_factory=set)
    replayed: set[int] = field(default_factory=set)
    has_backward: bool = False
    scores: list[dict[str, Any]] = field(default_factory=list)
    num_scores_due: int = 0
    tensors: dict[str, str] = field(default_factory=dict)
    died: Died | None = None

    @property
    def not_landed(self) -> tuple[str, ...]:
        """Fields that were on the way and never came."""
        found = [f"{name} ({why})" for name, why in self.missing.items()]
        landed = len(self.scores)
        if landed < self.num_scores_due:
            found.append(f"scores of {self.num_scores_due - landed} calls")
        inside = [layer for layer in self.entered if layer not in self.left]
        told = {line.get("layer") for line in self.scores}
        found += [f"scores of layer {layer}" for layer in inside if layer not in told]
        return tuple(found)


@dataclass(kw_only=True, slots=True)
class Rank:
    """One process of the job.

    Attributes:
        rank: Global rank.
        started: Milliseconds of wall time at which the process began to record.
        process: Its first line: versions, device, host.
        configs: Megatron's configurations by number.
        microbatches: In order of their numbers, which have no gap but at the front.
        steps: ``F3``, ``B3`` and the like in the order in which they began.
        ended: Whether the process came to its end by itself.
        uncaught: Exception that nothing caught.
        fatal: Signal that killed the process and its stack, where Python's fault handler wrote it.
        was_asked: Whether it was told to end from outside, as peers of a dead rank are.
        last_s: Wall time of the last line.
        broken: Lines that could not be read, by file.
        is_whole: Whether none of its files was left out.
        unread: Microbatches that events name and whose own line is not there: it could not be read,
            or the ring has let it go.
        num_cut: Microbatches left out because one between them and the others is not there.
        lost: Lines that the job could not write.
    """

    rank: int
    started: int
    process: dict[str, Any] = field(default_factory=dict)
    configs: dict[int, dict[str, Any]] = field(default_factory=dict)
    microbatches: dict[int, Microbatch] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    ended: bool = False
    uncaught: Died | None = None
    fatal: Died | None = None
    was_asked: bool = False
    last_s: float = 0.0
    broken: dict[str, int] = field(default_factory=dict)
    is_whole: bool = True
    unread: dict[int, Microbatch] = field(default_factory=dict)
    num_cut: int = 0
    lost: int = 0

    @property
    def num_broken(self) -> int:
        """Lines that could not be read, over all files."""
        return sum(self.broken.values())

    @property
    def unread_last(self) -> int | None:
        """Number of the last microbatch where its own line is not there."""
        last = max(self.unread, default=-1)
        return last if last > max(self.microbatches, default=-1) else None

    @property
    def last_word(self) -> str:
        """How the process ended where no exception says so."""
        if self.fatal is not None:
            return f"died of {self.fatal.type}"
        if self.ended:
            return "ended by itself"
        return "was asked to end (SIGTERM)" if self.was_asked else "stopped without a word"

    @property
    def died(self) -> Died | None:
        """The exception in attention, or one that nothing caught."""
        ordered = sorted((self.unread | self.microbatches).items())
        found = [one.died for _number, one in ordered if one.died is not None]
        return found[-1] if found else self.uncaught


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """What a folder holds.

    Attributes:
        ranks: By global rank, of each the process that began last.
        num_older: Files of earlier processes of the same ranks, left out.
        problems: Files that could not be read, in one line each.
    """

    folder: Path
    ranks: dict[int, Rank]
    num_older: int = 0
    problems: tuple[str, ...] = ()
