"""Evidence about layout tables of one case: their content, their builds, and who kept them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from harness.evidence.memo import memo_evidence
from harness.evidence.tables import flag_evidence, table_evidence
from harness.layout import Pack
from harness.record.evidence import LayoutEvidence
from harness.record.memo import MemoEvidence
from harness.reference.site import Site
from harness.runtime.engine import Stage


def layout_records(stage: Stage, pack: Pack, site: Site) -> Iterator[LayoutEvidence | MemoEvidence]:
    """Yield the evidence of the collectors ``tables`` and ``memo`` for one case.

    At level ``scorer`` the harness itself asks for the tables, so that they say nothing about a
    memo; there the builder is asked under every honest combination of cover flags instead.
    """
    recorder = stage.recorder
    calls_it_itself = stage.task.scenario.level == "scorer"
    if "tables" in stage.evidence:
        for layer in sorted({call.layer for call in recorder.calls}):
            here = replace(site, layer=layer)
            yield from table_evidence(recorder, pack, here)
            if calls_it_itself:
                yield from flag_evidence(recorder, pack, here)
    if "memo" in stage.evidence and not calls_it_itself:
        has_memo = bool(stage.facts.get("has_layout_memo"))
        yield memo_evidence(recorder, stage.watched.tables, site, has_memo=has_memo)
