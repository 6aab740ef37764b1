"""What the forkserver of a CUDA worker imports: torch alone, and nothing that asks for devices.

Importing Megatron calls ``torch.cuda.is_available()`` on the way (from
``dist_checkpointing/strategies/torch.py`` and ``torch.utils.cpp_extension``), after which a forked
child can no longer use CUDA.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys

from harness.runtime.death import die_with_parent
from harness.runtime.preload_names import PARENT_VARIABLE

SERVER_PID = os.getpid()
"""The forkserver's process id, as its forked children see it."""


def _in_forkserver() -> bool:
    # `python -c "from multiprocessing.forkserver import main; ..."`, started by another process;
    # its children, and whoever imports this module for another reason, have their own parents.
    parent = os.environ.get(PARENT_VARIABLE)
    is_child = multiprocessing.parent_process() is not None
    return sys.argv[:1] == ["-c"] and parent not in (None, str(os.getpid())) and not is_child


if _in_forkserver():
    die_with_parent(int(os.environ[PARENT_VARIABLE]))
    # A signal to the leader's process group is the leader's to handle.
    os.setsid()
    # Slurm's warning reaches every process of a step, in any group; ranks write their stacks on it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)

import torch  # noqa: E402 (after the request to die: the import takes seconds)
import torch.distributed  # noqa: E402, F401
