"""Turns a watched process and its journal into the record of how the rank ended."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

from harness.record.result import RankOutcome
from harness.runtime.journal import JournalContent
from harness.runtime.stacks import stack_file, waits_in_collective

if TYPE_CHECKING:
    from harness.runtime.supervisor import Watch


def rank_outcome(watch: Watch, content: JournalContent, run_folder: Path) -> RankOutcome:
    """Return the outcome of one rank.

    ``ended_s`` is when the exception was written where there is one, else when the end of the
    process was seen. The last phase of a rank without a closing line has no end.
    """
    node = watch.process.node
    status = None if watch.process.lost else watch.status
    return RankOutcome(
        global_rank=watch.task.global_rank,
        host=node.host or content.host or socket.gethostname(),
        pid=watch.process.pid,
        exit_code=status if status is not None and status >= 0 else None,
        signal=-status if status is not None and status < 0 else None,
        ended_by_harness=watch.killed,
        deadline=watch.deadline,
        last_phase=content.last_phase,
        last_line=content.last_line,
        completed=content.completed,
        exception=content.exception,
        process_state=watch.state,
        waiting_in_collective=waits_in_collective(watch.task.stacks, content.collectives),
        stacks=stack_file(watch.task.stacks, run_folder),
        ended_s=content.exception_s if content.exception_s is not None else watch.ended_s,
        phases=content.phases,
        last_collective=content.collectives[-1] if content.collectives else None,
        peak_rss_bytes=content.peak_rss_bytes,
        node_lost=watch.process.lost,
    )
