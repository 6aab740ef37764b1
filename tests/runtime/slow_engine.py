"""Engines that take their time, or leave something behind."""

import subprocess
import time

import torch

from harness.record.phase import Phase
from harness.runtime.journal import Journal
from harness.runtime.task import Task

SHORT_S = 0.4


def execute(task: Task, journal: Journal) -> None:
    """Spend 0.4 s in each of two phases that share a budget."""
    journal.phase(Phase.BUILD)
    for phase in (Phase.LAYOUT, Phase.SCORE):
        journal.phase(phase)
        time.sleep(SHORT_S)


def slow_build(task: Task, journal: Journal) -> None:
    """Spend more than the scenario's budget in a phase that is not on it."""
    journal.phase(Phase.BUILD)
    time.sleep(2 * SHORT_S)
    journal.phase(Phase.LAYOUT)


def leave_a_process(task: Task, journal: Journal) -> None:
    """Start a process that would outlive the rank."""
    journal.phase(Phase.LAYOUT)
    subprocess.Popen(["sleep", "600"])


def matmul(task: Task, journal: Journal) -> None:
    """Multiply on several threads, which hangs where the forkserver did so before."""
    torch.set_num_threads(2)
    journal.phase(Phase.LAYOUT)
    a = torch.randn(512, 512)
    assert torch.isfinite(a @ a).all()
