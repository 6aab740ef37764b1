"""Looks at the state of a rank before and after each microbatch."""

from __future__ import annotations

from typing import Any

from harness.evidence.state import state_evidence
from harness.layout import Pack
from harness.production.state import carriers, live_tensors, snapshot
from harness.record.state import StateEvidence
from harness.reference.site import Site
from harness.runtime.engine import Stage


def look_before(stage: Stage) -> None:
    """Take the snapshot that the end of the microbatch is held against."""
    if "state" in stage.evidence:
        stage.watched.before = snapshot(stage.watched.module, stage.watched.config)


def state_records(stage: Stage, pack: Pack, site: Site) -> list[StateEvidence]:
    """Hold the state against the snapshot before; empty where nobody looked."""
    watched = stage.watched
    if watched.before is None:
        return []
    params = _packed_seq_params(stage)
    extra, changed = ((), {}) if params is None else carriers(params, pack)
    return [
        state_evidence(
            watched.before,
            snapshot(watched.module, watched.config),
            site,
            carriers=extra,
            changed_fields=changed,
            live_tensors=live_tensors() if "live" in stage.evidence else None,
        )
    ]


def _packed_seq_params(stage: Stage) -> Any:
    for call in stage.recorder.of("attention"):
        return call.arguments.get("packed_seq_params")
    return None
