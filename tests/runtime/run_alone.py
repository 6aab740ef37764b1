"""Runs scenarios in this process: one rank, a world of its own, evidence read back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from harness.record.result import Attempt, RankOutcome
from harness.runtime.engine import execute
from harness.runtime.journal import Journal, read_journal
from harness.runtime.judge import judge_attempt
from harness.runtime.task import Task
from harness.scenario.spec import Scenario


@contextmanager
def one_rank(folder: Path) -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(folder / "store"), 1), rank=0, world_size=1
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def run_alone(
    scenario: Scenario,
    folder: Path,
    *,
    evidence: tuple[str, ...] = ("none",),
    inject: tuple[str, ...] = (),
) -> Attempt:
    """Run a scenario on this rank and judge it; all logical ranks at level scorer."""
    task = Task(
        scenario=scenario,
        global_rank=0,
        local_rank=0,
        world_size=1,
        store="",
        folder=str(folder),
        cp_ranks=scenario.logical_cp_ranks if scenario.level == "scorer" else (),
        evidence=evidence,
        inject=inject,
    )
    Path(task.journal).unlink(missing_ok=True)
    journal = Journal(task.journal, global_rank=0)
    execute(task, journal)
    journal.close()
    content = read_journal(task.journal, global_rank=0)
    return judge_attempt(
        scenario,
        (RankOutcome(global_rank=0, exit_code=0, completed=True),),
        [content],
        number=1,
        started_at="",
        duration_s=1.0,
        isolation="none",
    )
