"""Group evidence: which context-parallel group each part of a microbatch's attention went by."""

from __future__ import annotations

from dataclasses import dataclass, field

FORWARD, BACKWARD, INTERRUPTED = "forward", "backward", "interrupted"
"""Moments behind which the caller's group has to be back: ``interrupted`` is behind a forward that
an exception ended."""

USES = ("rotary", "partition", "gather", "bounds", "scoring")
"""What goes by a group: rotary embedding, partition of query rows, gather of keys, row bounds, and
the keys that are scored for each local one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupUse:
    """One way in which a forward, or its replay in backward, went by a group.

    Attributes:
        what: Name from ``USES``.
        size: Ranks of the group.
        rank: Own rank in it, None where the use shows a size alone.
        layer: Layer that ran.
        replay: True where backward computed it again.
    """

    what: str
    size: int
    rank: int | None
    layer: int
    replay: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMoment:
    """The group that a part of the layers held at a moment.

    Attributes:
        when: ``forward``, ``backward`` or ``interrupted``: behind which of them.
        holder: Which collection of groups, such as ``indexer.pg_collection.cp``.
        ranks: Its ranks, empty for no group.
        due: Ranks of the group that the caller had set before.
    """

    when: str
    holder: str
    ranks: tuple[int, ...]
    due: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupEvidence:
    """The groups of one microbatch and seed on one rank.

    Attributes:
        configured: Ranks of the group that the layers were built with.
        effective: Ranks of the group that the microbatch runs on.
        contract: How it is given: ``configured`` (nothing said), ``real``, or ``none`` (no group).
        set_by: Who sets it where the layers look: ``nobody`` needs to, the ``harness`` as caller,
            or the ``layer``.
        uses: What went by which group.
        moments: What was held behind forward, backward and an interrupted forward.
        stored: Effective size to the ranks of the group that is stored under it.
        comm_type: ``cp_comm_type`` as the layers hold it, empty where there is none.
        rows: Local rows of each rank of the group, in its order; empty after an exception.
        padded_total: Rows of the whole pack, padding included.
        ended_by: Class of the exception that ended the microbatch, empty where none did.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    seed: int
    configured: tuple[int, ...]
    effective: tuple[int, ...]
    contract: str = "configured"
    set_by: str = "nobody"
    uses: tuple[GroupUse, ...] = ()
    moments: tuple[GroupMoment, ...] = ()
    stored: dict[str, int] = field(default_factory=dict)
    comm_type: str = ""
    rows: tuple[int, ...] = ()
    padded_total: int = 0
    ended_by: str = ""
