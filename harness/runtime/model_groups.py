"""Group evidence of one microbatch at level ``model``, also where an exception ends it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from harness.evidence.groups import group_moments, group_uses, ranks_of
from harness.evidence.replay import Replays
from harness.production.groups import gather_rows
from harness.record.groups import INTERRUPTED, GroupEvidence, GroupMoment
from harness.runtime.cases import Case
from harness.runtime.model_run import ModelRun


class Moments:
    """What groups the layers held around one microbatch, and what went by which group.

    Attributes:
        replays: Calls of its forward, and those that backward made again; None before forward.
    """

    def __init__(self, run: ModelRun) -> None:
        self._run = run
        self._seen: list[GroupMoment] = []
        self.replays: Replays | None = None

    @property
    def _asked(self) -> bool:
        return self._run.role.main and "groups" in self._run.stage.evidence

    def look(self, when: str) -> None:
        """Note what groups the layers hold."""
        if self._asked:
            due = self._run.store.configured.configured_cp
            self._seen += group_moments(self._run.model, when, due)

    def look_behind_exception(self) -> None:
        """Note the groups that are held, and go on as if they had been put back."""
        self.look(INTERRUPTED)
        configured = self._run.store.configured.configured_cp
        for part in self._run.model.modules():
            collection = getattr(part, "pg_collection", None)
            if collection is not None and hasattr(collection, "cp"):
                collection.cp = configured

    @contextlib.contextmanager
    def kept(self, case: Case) -> Iterator[None]:
        """Write what the groups were where an exception ends the microbatch."""
        try:
            yield
        except Exception as error:
            if self._asked:
                self.look(INTERRUPTED)
                record = self._record(case, rows=(), ended_by=type(error).__name__)
                self._run.stage.journal.evidence(record)
            raise

    def write(self, case: Case, *, rows: int) -> None:
        """Write the evidence of a microbatch that ran to its end; all ranks of its group do.

        Args:
            case: The microbatch.
            rows: Local rows of this rank.
        """
        if self._asked:
            every = gather_rows(torch.tensor([rows]), self._run.groups)
            record = self._record(case, rows=tuple(int(part) for part in every))
            self._run.stage.journal.evidence(record)

    def _record(self, case: Case, *, rows: tuple[int, ...], ended_by: str = "") -> GroupEvidence:
        run, groups = self._run, self._run.groups
        recorder, tp_group = run.stage.recorder, groups.collection.tp
        forward, again = recorder.calls, recorder.calls[:0]
        if self.replays is not None:
            forward = self.replays.forward
            # What was computed again around attention has stayed with the kernels of backward.
            again = [*self.replays.again, *recorder.calls[len(forward) :]]
        comm_type = next(
            (part.cp_comm_type for part in run.model.modules() if hasattr(part, "cp_comm_type")), ""
        )
        return GroupEvidence(
            global_rank=run.stage.task.global_rank,
            cp_rank=groups.cp_rank,
            microbatch=case.index,
            seed=case.seed,
            configured=ranks_of(groups.configured_cp),
            effective=ranks_of(groups.effective or groups.configured_cp),
            contract=("real" if groups.grouped else "none") if run.dynamic else "configured",
            set_by="layer" if run.dynamic else "nobody",
            uses=(
                *group_uses(forward, tp_group),
                *group_uses(again, tp_group, replay=True),
            ),
            moments=tuple(self._seen),
            stored={str(size): found for size, found in run.store.sizes.items()},
            comm_type=str(comm_type),
            rows=rows,
            padded_total=case.pack.total_q,
            ended_by=ended_by,
        )
