"""Whether every part of a microbatch went by its own group, and the caller's was put back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.record.deviation import Deviation
from harness.record.groups import GroupEvidence, GroupUse
from harness.record.verdict import Verdict

_WORDS = {
    "rotary": "the rotary embedding",
    "partition": "the partition of query rows",
    "gather": "the gather of keys",
    "bounds": "the row bounds",
    "scoring": "the scorer's keys",
}
_GATHERS = "allgather"
"""The one ``cp_comm_type`` that DSA can run with over several ranks."""


def group_deviations(records: Sequence[GroupEvidence]) -> tuple[Deviation, ...]:
    """Return everything about groups that is not as it should be, microbatch by microbatch."""
    found = [
        Deviation(verdict=verdict, kind=kind, text=text, global_rank=record.global_rank)
        for record in records
        for verdict, kind, text in _of(record)
    ]
    return tuple(dict.fromkeys(found))


def _of(record: GroupEvidence) -> Iterator[tuple[Verdict, str, str]]:
    where = f"microbatch {record.microbatch} on rank {record.global_rank}"
    size = len(record.effective)
    rank = record.effective.index(record.global_rank)
    for use in record.uses:
        if use.size != size or use.rank not in (None, rank):
            due = f"it runs on {size} as rank {rank}"
            yield Verdict.WRONG_PATH, "group", f"{where}: {_use(use)}, {due}"
    for moment in record.moments:
        if moment.ranks != moment.due:
            yield (
                Verdict.STATE_LEAK,
                "group_left",
                f"{where}: behind {_MOMENTS[moment.when]} {moment.holder} holds "
                f"{_ranks(moment.ranks)}, the caller's was {_ranks(moment.due)}",
            )
    for key, held in record.stored.items():
        if held != int(key):
            yield (
                Verdict.WRONG_PATH,
                "group",
                f"{where}: the group stored for {key} ranks has {held}",
            )
    if size > 1 and record.comm_type and record.comm_type != _GATHERS:
        yield (
            Verdict.WRONG_PATH,
            "comm_type",
            f"{where}: the layers hold cp_comm_type {record.comm_type} for a group of {size}, "
            f"expected {_GATHERS}",
        )
    if record.rows and sum(record.rows) != record.padded_total:
        yield (
            Verdict.WRONG_VALUE,
            "rows",
            f"{where}: local rows {', '.join(map(str, record.rows))} over the group add up to "
            f"{sum(record.rows)}, the padded pack has {record.padded_total}",
        )


def _use(use: GroupUse) -> str:
    again = " computed again in backward" if use.replay else ""
    place = "" if use.rank is None else f" as rank {use.rank}"
    return f"{_WORDS[use.what]}{again} went by a group of {use.size}{place}"


_MOMENTS = {
    "forward": "forward",
    "backward": "backward",
    "interrupted": "an exception inside attention",
}


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"ranks {', '.join(map(str, ranks))}" if ranks else "no group"
