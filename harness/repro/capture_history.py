"""Which recorded microbatches make a history, and what of them could not be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.repro.capture_pack import RecordedPack, recorded_pack
from harness.repro.capture_records import Capture, CaptureError, Rank

_SHOWN = 8
"""Files that are named; of a large job all may be broken."""


def packs_until(
    capture: Capture, rank: Rank, last: int, history: int | None
) -> tuple[RecordedPack, ...]:
    """Return the packs that a rank was given up to one of them.

    Args:
        capture: All ranks.
        rank: The rank.
        last: Number of the last one.
        history: How many at most; None for all that are there.

    Raises:
        CaptureError: when it is not there, or not enough is known of one.
    """
    numbers = [number for number in rank.microbatches if number <= last]
    if last not in rank.microbatches:
        first, final = min(rank.microbatches), max(rank.microbatches)
        raise CaptureError(
            f"rank {rank.rank}: expected a microbatch from {first} to {final}, found {last}; the "
            "capture holds no other"
        )
    if history is not None:
        numbers = numbers[-history:]
    for number in numbers:
        config_of(capture, rank, number)
    return tuple(
        recorded_pack(
            capture, rank, rank.microbatches[number], without=_without(rank, number, last)
        )
        for number in numbers
    )


def _without(rank: Rank, number: int, last: int) -> str:
    """Say how to make a scenario that does without one microbatch."""
    if number < last:
        return f"begin the history behind it with --history {last - number}"
    if number - 1 in rank.microbatches:
        return f"end the history before it with --until {number - 1}"
    return "no other of its microbatches is left; choose a rank of another group by --rank"


def config_of(capture: Capture, rank: Rank, number: int) -> Mapping[str, Any]:
    """Return the configuration of Megatron that a microbatch ran with.

    Raises:
        CaptureError: when it cannot be read: without it nothing is known of the model.
    """
    place = rank.microbatches[number].facts.get("config", 0)
    if place in rank.configs:
        return rank.configs[place]
    others = [other.rank for other in capture.ranks.values() if place in other.configs]
    advice = f"choose a rank that has it by --rank, such as {others[0]}" if others else ""
    broken = "; ".join(_broken_files(rank))
    raise CaptureError(
        f"rank {rank.rank}, microbatch {number}: expected Megatron's configuration {place} (a line "
        f"`config` of its files), found none{f' ({broken})' if broken else ''}, and nothing else "
        f"tells of the model; {advice or 'mend that line'}"
    )


def doubts_of(capture: Capture, rank: Rank) -> Iterator[str]:
    """Yield what could not be read, in lines for the head of a scenario.

    Args:
        capture: All ranks: another one's lines may tell of the first cause.
        rank: The one whose history it is.
    """
    others = [other for other in capture.ranks.values() if other is not rank]
    broken = [line for one in (rank, *others) for line in _broken_files(one)]
    yield from _some(broken, "files with broken lines")
    yield from _some(capture.problems, "files or ranks left out")
    if broken or capture.problems:
        yield "what stood there is not known: another rank or microbatch may be the one at fault"
    if capture.num_older:
        yield f"{capture.num_older} files of earlier processes of the same ranks were left out"
    yield from _gaps(capture, rank)


def _broken_files(rank: Rank) -> Iterator[str]:
    for name, count in rank.broken.items():
        yield f"{name}: {count} line{'s' if count > 1 else ''} could not be read"


def _some(lines: Sequence[str], what: str) -> Iterator[str]:
    yield from lines[:_SHOWN]
    if len(lines) > _SHOWN:
        yield f"{len(lines) - _SHOWN} more {what}"


def _gaps(capture: Capture, rank: Rank) -> Iterator[str]:
    """Yield which microbatches the history lacks."""
    first = min(rank.microbatches)
    # Where no line is broken the ring has let them go, as it does in every long job.
    before = [number for number in rank.unread if number < first and rank.broken]
    if rank.num_cut or before:
        lost = f"; {rank.num_cut} before it left out" if rank.num_cut else ""
        yield (
            f"microbatch {first - 1} has no line that can be read: the history begins behind it"
            f"{lost}"
        )
    last = rank.unread_last
    if last is not None:
        yield (
            f"microbatch {last}, the last of rank {rank.rank}, has no line that can be read and is "
            f"not in this history{_peer_with(capture, rank, last)}"
        )


def _peer_with(capture: Capture, rank: Rank, number: int) -> str:
    facts = rank.microbatches[max(rank.microbatches)].facts
    ranks = (facts.get("cp") or {}).get("ranks")
    for other in ranks if isinstance(ranks, list) else []:
        peer = capture.ranks.get(other) if isinstance(other, int) else None
        if peer is not None and number in peer.microbatches:
            return f"; rank {other} of its group has that microbatch: --rank {other}"
    return ""
