"""Group evidence of one microbatch at level ``attention``, also where an exception ends it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from harness.evidence.groups import group_uses, ranks_of
from harness.production.groups import gather_rows
from harness.record.groups import INTERRUPTED, GroupEvidence
from harness.runtime.attention_run import AttentionRun
from harness.runtime.attention_steps import Held

LAYER = 1
"""The one layer that level ``attention`` builds."""


@contextlib.contextmanager
def failed_case(run: AttentionRun) -> Iterator[list[Held]]:
    """Write what the groups were when an exception ends a microbatch.

    Yields:
        A list that takes the microbatch once it has begun.
    """
    begun: list[Held] = []
    try:
        yield begun
    except Exception as error:
        if begun and run.role.main and "groups" in run.stage.evidence:
            begun[-1].look(run, INTERRUPTED)
            record = _record(run, begun[-1], rows=(), ended_by=type(error).__name__)
            run.stage.journal.evidence(record)
        raise


def group_records(run: AttentionRun, held: Held) -> Iterator[GroupEvidence]:
    """Yield the evidence of a microbatch that ran to its end; all ranks of its group do."""
    if "groups" not in run.stage.evidence:
        return
    own = run.stage.recorder.of("attention")[0].arguments["query"].size(0)
    rows = gather_rows(torch.tensor([own]), held.groups)
    yield _record(run, held, rows=tuple(int(part) for part in rows))


def _record(
    run: AttentionRun, held: Held, *, rows: tuple[int, ...], ended_by: str = ""
) -> GroupEvidence:
    groups, case = held.groups, held.case
    recorder = run.stage.recorder
    forward, again = recorder.calls, []
    if held.replays is not None:
        forward = held.replays.forward
        again = held.replays.again or recorder.calls[len(forward) :] * bool(ended_by)
    tp_group = groups.collection.tp
    real = groups.grouped if run.dynamic else None
    return GroupEvidence(
        global_rank=run.stage.task.global_rank,
        cp_rank=groups.cp_rank,
        microbatch=case.index,
        seed=case.seed,
        configured=ranks_of(groups.configured_cp),
        effective=ranks_of(groups.effective or groups.configured_cp),
        contract="configured" if real is None else "real" if real else "none",
        set_by=run.set_by,
        uses=(
            *group_uses(forward, tp_group),
            *group_uses(again, tp_group, replay=True),
        ),
        moments=tuple(held.moments),
        stored={str(size): found for size, found in run.store.sizes.items()},
        comm_type=str(getattr(run.attention, "cp_comm_type", "")),
        rows=rows,
        padded_total=case.pack.total_q,
        ended_by=ended_by,
    )
