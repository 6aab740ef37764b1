"""Deviations: what a judge of path or memo found, one sentence each, with a kind to match rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from harness.record.verdict import Verdict

DeviationKind = Literal[
    "unproved",
    "backend",
    "plan",
    "fallback",
    "calls",
    "contradiction",
    "storage",
    "diagnostics",
    "repeated_diagnostic",
    "rebuilt",
    "unequal_keys",
    "thin_key",
    "stale",
    "builds",
    "unseen",
    "device_read",
    "host_reads",
    "graph_warnings",
    "graph_construction",
    "graph_capture",
    "graph_replay",
    "state",
    "launch",
    "copy",
    "hook_keywords",
    "stale_signature",
    "replay",
    "memory",
    "group",
    "group_left",
    "comm_type",
    "rows",
]
"""Kinds of deviations; the first nine are about the path, the next seven about the layout memo,
and most others are what the optional collectors found."""

DEVIATION_KINDS: tuple[str, ...] = get_args(DeviationKind)


@dataclass(frozen=True, kw_only=True, slots=True)
class Deviation:
    """One reason for a verdict of ``wrong_path`` or ``wrong_memo``.

    Attributes:
        verdict: The verdict it leads to.
        kind: One of ``DEVIATION_KINDS``.
        text: Expected and found, in one sentence.
        global_rank: Rank that showed it, None where it is about all of them.
    """

    verdict: Verdict
    kind: str
    text: str
    global_rank: int | None = None

    def __post_init__(self) -> None:
        """Refuse a kind that no rule could name."""
        if self.kind not in DEVIATION_KINDS:
            raise ValueError(f"deviation kind {self.kind!r}; use one of {DEVIATION_KINDS}")
