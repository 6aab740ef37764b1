"""Where ranks part company over their collectives, from the journals of all of them. No torch.

Two questions are asked. Did ranks come to the same call number of a group with different calls?
And who waits in a call that other members of its group never made? A rank that is waited for and
waits for nobody is at fault; where everybody waits for somebody, the smaller side is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from harness.record.collective import CollectiveCall, CollectiveFinding, CollectiveKind, RankCall
from harness.runtime.journal import JournalContent

_INJECTION = "harness/runtime/inject.py:"
_SEVERAL_SHAPES = frozenset({"all_to_all", "all_to_all_single"})
"""Operations whose tensors may differ from rank to rank."""

Calls = Mapping[int, Sequence[CollectiveCall]]
"""Calls of each global rank, in the order made."""
_Key = tuple[str, int, int, int]
"""Group and number of a call; for a point-to-point call also sender and receiver, else -1."""


def disagreement(journals: Iterable[JournalContent]) -> CollectiveFinding | None:
    """Return the first call over which the ranks of an attempt part company, None without one."""
    calls = {journal.global_rank: journal.collectives for journal in journals}
    return find_disagreement(calls)


def find_disagreement(calls: Calls) -> CollectiveFinding | None:
    """As ``disagreement``, from the calls themselves."""
    table = _Table(calls)
    return _mismatch(table) or _wait(table)


class _Table:
    """All calls by their number in their group."""

    def __init__(self, calls: Calls) -> None:
        self.ranks = tuple(sorted(calls))
        self.by_key: dict[_Key, dict[int, CollectiveCall]] = {}
        for rank in self.ranks:
            for call in calls[rank]:
                key = _key(rank, call)
                if key is not None:
                    self.by_key.setdefault(key, {})[rank] = call

    def members(self, key: _Key, call: CollectiveCall) -> tuple[int, ...]:
        """Return the ranks that are due in a call and have a journal here."""
        due = call.ranks if key[2] < 0 else key[2:]
        return tuple(rank for rank in due if rank in self.ranks)


def _key(rank: int, call: CollectiveCall) -> _Key | None:
    if not call.pairwise:
        return call.group, call.sequence, -1, -1
    if call.peer is None:
        return None  # from any rank: nobody in particular is waited for
    sends = "send" in call.operation
    ends = (rank, call.peer) if sends else (call.peer, rank)
    return call.group, call.sequence, *ends


def _mismatch(table: _Table) -> CollectiveFinding | None:
    """The earliest call number at which two ranks made different calls."""
    found = []
    for key, made in table.by_key.items():
        field = _differing_field(made) if key[2] < 0 else _differing_pair(made)
        if field:
            found.append((min(call.time_s for call in made.values()), key, field, made))
    if not found:
        return None
    _, key, field, made = min(found, key=lambda item: item[:2])
    first = next(iter(made.values()))
    return CollectiveFinding(
        kind=CollectiveKind.MISMATCH,
        group=key[0],
        label=first.label,
        sequence=key[1],
        operation=first.operation,
        field=field,
        ranks=_odd_ones(made),
        waiting=tuple(rank for rank, call in made.items() if not call.complete),
        calls=_rank_calls(made),
    )


def _signature(call: CollectiveCall) -> dict[str, object]:
    """What has to be equal on all ranks, by name and in the order of importance."""
    return {
        "operation": call.operation,
        "group ranks": call.ranks,
        "dtype": call.dtype,
        "shape": _sizes(call),
        # Left out, it is a sum.
        "reduction": call.reduction or "SUM",
        "root": call.peer,
    }


def _sizes(call: CollectiveCall) -> object:
    """Element counts that have to be equal: a view of another shape holds the same data."""
    if call.operation in _SEVERAL_SHAPES:
        return None
    outputs = tuple(prod(shape) for shape in call.outputs)
    inputs = tuple(prod(shape) for shape in call.inputs)
    # A gather into parts of unequal size takes an input of another size from each rank.
    return outputs if len(set(outputs)) > 1 else (outputs, inputs)


def _differing_field(made: Mapping[int, CollectiveCall]) -> str:
    signatures = [_signature(call) for call in made.values()]
    for name, value in signatures[0].items():
        if any(signature[name] != value for signature in signatures[1:]):
            return name
    return ""


def _differing_pair(made: Mapping[int, CollectiveCall]) -> str:
    """Sender and receiver have to agree on the data alone."""
    if len(made) < 2:
        return ""
    one, other = made.values()
    if one.dtype != other.dtype:
        return "dtype"
    sizes = [sum(prod(shape) for shape in (*c.inputs, *c.outputs)) for c in (one, other)]
    return "shape" if sizes[0] != sizes[1] else ""


def _odd_ones(made: Mapping[int, CollectiveCall]) -> tuple[int, ...]:
    """The ranks that are alone against a majority; between equal sides, the planted call."""
    sides: Counter[str] = Counter()
    texts = {rank: repr(sorted(_signature(call).items())) for rank, call in made.items()}
    sides.update(texts.values())
    (largest, count), *rest = sides.most_common()
    if not rest or count > rest[0][1]:
        return tuple(rank for rank, text in texts.items() if text != largest)
    return _planted(made)


def _planted(made: Mapping[int, CollectiveCall]) -> tuple[int, ...]:
    return tuple(r for r, call in made.items() if call.at and call.at[0].startswith(_INJECTION))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wait:
    """Ranks that wait in one call, and members that never made it."""

    key: _Key
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    calls: dict[int, CollectiveCall]


def _waits(table: _Table) -> Iterator[_Wait]:
    for key, made in table.by_key.items():
        waiting = tuple(rank for rank, call in made.items() if not call.complete)
        if waiting:
            members = table.members(key, made[waiting[0]])
            missing = tuple(rank for rank in members if rank not in made)
            if missing:
                yield _Wait(key=key, waiting=waiting, missing=missing, calls=made)


def _wait(table: _Table) -> CollectiveFinding | None:
    waits = list(_waits(table))
    if not waits:
        return None
    stuck = {rank for wait in waits for rank in wait.waiting}
    first = {wait.key: min(call.time_s for call in wait.calls.values()) for wait in waits}
    # Earlier calls first: what a rank missed first it did not come to later either.
    waits.sort(key=lambda wait: first[wait.key])
    for wait in waits:
        absent = tuple(rank for rank in wait.missing if rank not in stuck)
        if absent:
            return _finding(CollectiveKind.MISSING, wait, absent, wait.calls)
    return _circle(waits)


def _circle(waits: Sequence[_Wait]) -> CollectiveFinding:
    """Everybody who is waited for waits in another call."""
    last: dict[int, CollectiveCall] = {}
    for wait in waits:
        for rank in wait.waiting:
            last.setdefault(rank, wait.calls[rank])
    last = dict(sorted(last.items()))
    lonely = min(waits, key=lambda wait: len(wait.waiting) - len(wait.missing))
    if len(lonely.waiting) < len(lonely.missing):
        return _finding(CollectiveKind.EXTRA, lonely, lonely.waiting, last)
    for wait in waits:
        planted = _planted({rank: wait.calls[rank] for rank in wait.waiting})
        if planted:
            return _finding(CollectiveKind.EXTRA, wait, planted, last)
    return _finding(CollectiveKind.CIRCLE, waits[0], (), last)


def _finding(
    kind: CollectiveKind,
    wait: _Wait,
    ranks: tuple[int, ...],
    calls: Mapping[int, CollectiveCall],
) -> CollectiveFinding:
    call = wait.calls[wait.waiting[0]]
    return CollectiveFinding(
        kind=kind,
        group=call.group,
        label=call.label,
        sequence=call.sequence,
        operation=call.operation,
        ranks=ranks,
        waiting=wait.waiting,
        calls=_rank_calls(calls),
    )


def _rank_calls(calls: Mapping[int, CollectiveCall]) -> tuple[RankCall, ...]:
    return tuple(RankCall(global_rank=rank, call=call) for rank, call in sorted(calls.items()))
