"""What the forkserver of CPU ranks imports: torch and the production modules.

Imports only. A multi-threaded matmul here would leave its thread pool's locks held in every forked
child, whose first matmul then waits for ever.
"""

from __future__ import annotations

import gc
import logging
import traceback

import harness.runtime.collectives
import harness.runtime.preload_torch
from harness.record.codec import learn
from harness.runtime.task import Task

PROBLEM: str | None = None
"""Traceback of a failed import. The child meets the same error in its own phases and journals it;
the preload is only a head start."""

# Warns of an absent CUDA runtime on every machine without a GPU.
logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)

try:
    import harness.production.preload
    import harness.runtime.child
    import harness.runtime.levels
except Exception:  # noqa: BLE001 (kept and shown in the run's notes)
    PROBLEM = traceback.format_exc()

# Each child reads one.
learn(Task)

# Its wrappers do nothing until a rank attaches its journal, but finding their places takes a while.
harness.runtime.collectives.install()

# Collections in a child would walk, and so copy, every page of what was imported here.
gc.collect()
gc.freeze()
