"""State evidence: a snapshot before a microbatch against one after it."""

from __future__ import annotations

from harness.production.state import CARRIER, DISPATCH, GROUP, SETTING, Snapshot
from harness.record.state import StateChange, StateEvidence
from harness.reference.site import Site

ABSENT = "absent"


def state_evidence(
    before: Snapshot,
    after: Snapshot,
    site: Site,
    *,
    carriers: tuple[str, ...] = (),
    changed_fields: dict[str, tuple[str, str]] | None = None,
    live_tensors: int | None = None,
) -> StateEvidence:
    """Describe what differs.

    Args:
        before: At the beginning of the microbatch.
        after: At its end.
        site: Rank, microbatch and seed.
        carriers: Attributes that the build hung on ``PackedSeqParams``.
        changed_fields: Fields of ``PackedSeqParams`` with (given, found).
        live_tensors: Tensors alive at the end, where they were counted.
    """
    moved = [
        StateChange(name=name, before=before.get(name, ABSENT), after=after.get(name, ABSENT))
        for name in sorted({*before, *after})
        if before.get(name) != after.get(name)
    ]
    for name, (given, found) in (changed_fields or {}).items():
        moved.append(StateChange(name=f"{CARRIER} {name}", before=given, after=found))
    return StateEvidence(
        global_rank=site.global_rank,
        cp_rank=site.cp_rank,
        microbatch=site.microbatch,
        seed=site.seed,
        groups=_count(before, GROUP),
        settings=_count(before, SETTING),
        dispatch=_count(before, DISPATCH),
        carriers=carriers,
        live_tensors=live_tensors,
        moved=tuple(moved),
    )


def _count(snapshot: Snapshot, kind: str) -> int:
    return sum(name.startswith(f"{kind} ") for name in snapshot)
