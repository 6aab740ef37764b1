"""Collective calls of ranks, and where the ranks of an attempt part company over them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCall:
    """One collective or point-to-point call of one rank, in the order of its journal.

    Attributes:
        group: Name of the process group as torch.distributed numbers it.
        label: The group's description where its maker gave one.
        ranks: Global ranks of the group, in its order.
        sequence: Number of the call on this rank, from 0: in its group or, for a point-to-point
            call, among those of the same direction with the same peer.
        operation: Name of the entry point; deprecated aliases under the name they stand for.
        inputs: Shapes of what the rank gives.
        outputs: Shapes of what it receives, empty where the operation works in place.
        dtype: Of the first tensor, without ``torch.``.
        reduction: Such as ``SUM``, empty where nothing is reduced.
        peer: Global rank of the root, or of the other end of a point-to-point call.
        pairwise: True for a point-to-point call.
        blocking: True when the call returns only after the operation is complete on this rank.
        at: Callers as ``file:line``, innermost first, without those inside torch.
        time_s: Monotonic clock of the host just before the call.
        end: ``returned``, ``raised <class>``, or None when the call never came back. An
            asynchronous call goes on from ``returned`` to ``waiting`` and ``completed``.
    """

    group: str
    label: str = ""
    ranks: tuple[int, ...] = ()
    sequence: int
    operation: str
    inputs: tuple[Shape, ...] = ()
    outputs: tuple[Shape, ...] = ()
    dtype: str = ""
    reduction: str = ""
    peer: int | None = None
    pairwise: bool = False
    blocking: bool = True
    at: tuple[str, ...] = ()
    time_s: float = 0.0
    end: str | None = None

    @property
    def complete(self) -> bool:
        """True when the operation is known to have finished on this rank."""
        return self.end == "completed" or (self.blocking and self.end == "returned")

    @property
    def stands(self) -> bool:
        """True when the rank never left the call, or the wait for it."""
        return self.end in (None, "waiting")

    @property
    def place(self) -> str:
        """The call's number and group, such as ``all_reduce #3 of group 1 (ranks 0, 1)``."""
        members = ", ".join(map(str, self.ranks[:_SHOWN])) + (", ..." * (len(self.ranks) > _SHOWN))
        label = f" {self.label}" if self.label else ""
        if self.pairwise:
            peer = "any rank" if self.peer is None else f"rank {self.peer}"
            return f"{self.operation} #{self.sequence} with {peer} in group {self.group}{label}"
        return f"{self.operation} #{self.sequence} of group {self.group}{label} (ranks {members})"

    @property
    def details(self) -> str:
        """Tensors and caller, such as ``float32 [8] at megatron/core/utils.py:96``."""
        tensors = " -> ".join(_shapes(part) for part in (self.inputs, self.outputs) if part)
        parts = [self.dtype, tensors, self.reduction]
        parts += [f"root {self.peer}"] if self.peer is not None and not self.pairwise else []
        parts += [f"at {' < '.join(self.at)}"] if self.at else []
        return " ".join(part for part in parts if part)

    @property
    def text(self) -> str:
        """The call in one line: place, tensors, caller."""
        return f"{self.place}: {self.details}" if self.details else self.place


_SHOWN = 8


def _shapes(shapes: tuple[Shape, ...]) -> str:
    if len(shapes) > 1 and len(set(shapes)) == 1:
        return f"{len(shapes)} x {list(shapes[0])}"
    return ", ".join(str(list(shape)) for shape in shapes)


class CollectiveKind(enum.StrEnum):
    """How ranks part company over their collectives."""

    MISSING = "missing"
    """Peers wait in a call that the named ranks never made."""
    EXTRA = "extra"
    """The named ranks wait in a call that most of its group never made, and their peers wait too"""
    MISMATCH = "mismatch"
    """All came to the same call number of a group with different calls."""
    CIRCLE = "circle"
    """Ranks wait for each other in different calls, and nothing tells who is right."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCall:
    """The call in which one rank stood."""

    global_rank: int
    call: CollectiveCall


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveFinding:
    """The first call over which the ranks of an attempt part company.

    Attributes:
        group: Group of that call.
        sequence: Its number in the group.
        field: What differs, for a mismatch: ``operation``, ``shape``, ``dtype``, ``reduction``,
            ``root`` or ``group ranks``; else empty.
        ranks: Ranks that are at fault as far as the journals tell; empty where two sides of equal
            size contradict each other.
        waiting: Ranks that wait in the call.
        calls: The calls in question, one per rank that has something to say.
    """

    kind: CollectiveKind
    group: str
    label: str = ""
    sequence: int
    operation: str
    field: str = ""
    ranks: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    calls: tuple[RankCall, ...] = ()

    @property
    def text(self) -> str:
        """One or two sentences made of the calls."""
        calls = {item.global_rank: item.call for item in self.calls}
        match self.kind:
            case CollectiveKind.MISSING:
                call = calls[self.waiting[0]]
                site = f" at {' < '.join(call.at)}" if call.at else ""
                who, absent = _named(self.waiting), _named(self.ranks)
                return f"{who} in {call.place}{site}, which {absent} never called"
            case CollectiveKind.EXTRA:
                place = calls[self.ranks[0]].place
                return f"{_named(self.ranks)} alone in {place}; {_stands(calls, self.ranks)}"
            case CollectiveKind.CIRCLE:
                return f"ranks wait for each other: {_stands(calls)}"
        group = f"group {self.group}{' ' + self.label if self.label else ''}"
        made = "; ".join(
            f"rank {rank} made {call.operation} {call.details}".rstrip()
            for rank, call in list(calls.items())[:_SHOWN]
        )
        odd = f"; {_named(self.ranks)} against the others" if self.ranks else ""
        return f"call #{self.sequence} of {group} differs in {self.field}: {made}{odd}"


def _named(ranks: tuple[int, ...]) -> str:
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(map(str, ranks))}"


def _stands(calls: dict[int, CollectiveCall], without: tuple[int, ...] = ()) -> str:
    shown = [f"rank {rank} in {call.text}" for rank, call in calls.items() if rank not in without]
    more = [f"and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else []
    return "; ".join(shown[:_SHOWN] + more)
