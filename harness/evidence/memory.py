"""Memory evidence: tensors, objects and pages that a process holds between two microbatches."""

from __future__ import annotations

import gc
import resource

import torch

from harness.record.memory import MemoryEvidence
from harness.reference.site import Site


def set_apart() -> None:
    """Leave out of later looks what is there already: a build's modules are a million objects.

    ``gc.unfreeze`` undoes it.
    """
    gc.collect()
    gc.freeze()


def memory_evidence(site: Site, *, forward: int) -> MemoryEvidence:
    """Look at what this process holds, after a collection.

    Args:
        site: Rank, microbatch and seed.
        forward: Number of the forward that is over.
    """
    gc.collect()
    objects = gc.get_objects()
    tensors = [thing for thing in objects if isinstance(thing, torch.Tensor)]
    return MemoryEvidence(
        global_rank=site.global_rank,
        cp_rank=site.cp_rank,
        microbatch=site.microbatch,
        seed=site.seed,
        forward=forward,
        live_tensors=len(tensors),
        live_bytes=_bytes(tensors),
        objects=len(objects),
        resident_bytes=_resident(),
        device_bytes=torch.cuda.memory_allocated() if torch.cuda.is_available() else None,
    )


def _bytes(tensors: list[torch.Tensor]) -> int:
    """Bytes of the storages, each counted once however many views it has."""
    sizes: dict[int, int] = {}
    for tensor in tensors:
        try:
            storage = tensor.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
        except (NotImplementedError, RuntimeError):
            # A wrapper without storage; what it wraps is counted by itself.
            continue
    return sum(sizes.values())


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()
