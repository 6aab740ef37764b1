"""Where the ranks of an attempt meet: a store in the process of rank 0."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from harness.runtime.task import Task

if TYPE_CHECKING:
    from torch.distributed import Store

_LOOPBACK = "127.0.0.1"


def open_store(task: Task) -> Store:
    """Return the attempt's store.

    The process of rank 0 holds it, at a port that the kernel chooses and that nobody else can have
    taken in between; its address is published by rename. A file would serve on one node, but its
    readers look every 10 ms, and Megatron makes a dozen groups one after the other.

    Raises:
        TimeoutError: if rank 0 did not publish an address within the limit of the phase.
    """
    import torch.distributed as dist

    limit_s = task.limits.rendezvous_s
    shared = task.place.num_nodes > 1
    if task.global_rank == 0:
        address = task.place.address if shared else _LOOPBACK
        store = dist.TCPStore(
            address,
            0,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=limit_s),
        )
        _publish(Path(task.store), address, store.port, shared=shared)
    else:
        host, port = _await(Path(task.store), limit_s, shared=shared)
        store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=limit_s))
    # Groups are made through it in later phases, whose limits the supervisor has to see first.
    store.set_timeout(timedelta(seconds=task.limits.collective_s))
    return store


def _publish(file: Path, host: str, port: int, *, shared: bool) -> None:
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    with open(temporary, "w") as stream:
        json.dump({"host": host, "port": port}, stream)
        stream.flush()
        if shared:
            os.fsync(stream.fileno())
    os.replace(temporary, file)


def _await(file: Path, limit_s: float, *, shared: bool) -> tuple[str, int]:
    limit = time.monotonic() + limit_s
    pause_s = 0.02 if shared else 0.002
    while time.monotonic() < limit:
        # Listing the folder asks the file server, where opening the file may not.
        if file.name in os.listdir(file.parent):
            found = json.loads(file.read_text())
            return str(found["host"]), int(found["port"])
        time.sleep(pause_s)
    reason = "is the run folder shared between the nodes?" if shared else "did its process end?"
    raise TimeoutError(
        f"rank 0 did not publish the address of its store in {file} within {limit_s:.0f} s; "
        f"{reason}"
    )
