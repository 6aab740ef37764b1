"""What the leader must know of GPUs, without torch and without touching CUDA."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

MEMORY_SLACK_BYTES = 64 * 2**20
"""Memory that may stay in use on a GPU after its processes are gone (driver bookkeeping)."""
SETTLE_S = 5.0
"""How long the driver gets to return the memory of killed processes."""


def num_gpus(env: Mapping[str, str] = os.environ, root: Path = Path("/")) -> int:
    """Count the NVIDIA GPUs that processes of this node may use.

    Device files are counted, so that no CUDA context and no driver library is needed; an explicit
    ``CUDA_VISIBLE_DEVICES`` is believed as far as it is shorter.
    """
    if not (root / "proc/driver/nvidia/version").exists():
        return 0
    found = len([p for p in (root / "dev").glob("nvidia*") if p.name[6:].isdigit()])
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return found
    names = [name.strip() for name in visible.split(",")]
    # CUDA ignores what stands behind the first invalid entry; -1 is the usual way to say none.
    valid = names.index("-1") if "-1" in names else len(names)
    return min(found, len([name for name in names[:valid] if name]))


def used_memory() -> tuple[int, ...]:
    """Return the memory in use on each GPU in bytes, empty where NVML cannot tell."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 (no driver, no library: the answer is the same)
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return tuple(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)
    finally:
        pynvml.nvmlShutdown()


def unclean_gpus(baseline: Sequence[int], limit_s: float = SETTLE_S) -> tuple[str, ...]:
    """Say which GPUs have not gone back to their baseline after all rank processes ended."""
    limit = time.monotonic() + limit_s
    while True:
        now = used_memory()
        unclean = [
            f"GPU {index}: {used >> 20} MiB in use after the attempt, {before >> 20} MiB before"
            for index, (before, used) in enumerate(zip(baseline, now, strict=False))
            if used > before + MEMORY_SLACK_BYTES
        ]
        if not unclean or time.monotonic() >= limit:
            return tuple(unclean)
        time.sleep(0.2)
