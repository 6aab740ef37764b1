"""Looks at what a rank holds after each microbatch."""

from __future__ import annotations

from collections.abc import Iterator

from harness.evidence.memory import memory_evidence, set_apart
from harness.record.memory import MemoryEvidence
from harness.reference.site import Site
from harness.runtime.engine import Stage


def memory_records(stage: Stage, site: Site) -> Iterator[MemoryEvidence]:
    """Yield what the rank holds, where the scenario or the user asks for it."""
    if "memory" not in stage.evidence:
        return
    if not stage.watched.set_apart:
        set_apart()
        stage.watched.set_apart = True
    yield memory_evidence(site, forward=stage.recorder.forwards)
