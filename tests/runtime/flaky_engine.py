"""The tiny engine, but the second attempt of scenarios called ``flaky`` dies by a signal."""

import os
import signal

import tiny_engine

from harness.record.phase import Phase
from harness.runtime.journal import Journal
from harness.runtime.task import Task


def execute(task: Task, journal: Journal) -> None:
    """Go through the phases, or die in phase score."""
    if "flaky" in task.scenario.id and task.attempt == 2:
        journal.phase(Phase.SCORE)
        os.kill(os.getpid(), signal.SIGSEGV)
    tiny_engine.execute(task, journal)
