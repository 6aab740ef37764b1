"""Memo evidence: how often layout tables were built and reused in one microbatch on one rank."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TableRequest:
    """One request for layout tables, by a layer, at one of the build's sites.

    Attributes:
        layer: Layer that asked.
        site: Function that asked, such as ``DSAttention.forward``.
        key: The memo's key as text; empty where the build has no memo.
        geometry: What the tables depend on: sizes, rank and a digest of the boundaries.
        flags: The cover flags as asked for, such as ``query=False key=False``.
        builds: Builds that the request led to; 0 where it was served kept tables.
        build_s: Seconds of these builds.
        table: Number of the object that was served, counted from 0 over the process.
        first_forward: Forward of the process in which that object was first served.
        equal: Whether the tables equal those that a build of this request would yield now; None
            where there was nothing to build again.
        sorts: Sorts in one build.
        reads: Times one build waits for a value, or for a size that depends on values.
    """

    layer: int
    site: str
    key: str
    geometry: str
    flags: str
    builds: int
    build_s: float = 0.0
    table: int = 0
    first_forward: int = 0
    equal: bool | None = None
    sorts: int = 0
    reads: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoEvidence:
    """All requests for layout tables of one microbatch and seed on one rank.

    Attributes:
        forward: Number of the forward in its process.
        has_memo: Whether the build keeps tables for a microbatch (probed).
        layers: Attention calls of the forward that need the tables.
        prebuilt: Whether boundaries were brought to the host before the forward.
    """

    global_rank: int
    cp_rank: int
    microbatch: int
    seed: int
    forward: int
    has_memo: bool
    layers: int
    requests: tuple[TableRequest, ...] = ()
    prebuilt: bool = False

    @property
    def builds(self) -> int:
        """Builds of all requests."""
        return sum(request.builds for request in self.requests)

    @property
    def reuses(self) -> int:
        """Requests that were served kept tables."""
        return sum(request.builds == 0 for request in self.requests)

    @property
    def build_s(self) -> float:
        """Seconds of all builds."""
        return sum(request.build_s for request in self.requests)
