"""Copies of layout tables to the device: direct against pin-then-copy."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Protocol

import torch

from harness.layout import Pack, expand_runs, inverse_permutation, local_runs, pack_sequences
from harness.record.copies import CopyEvidence

CP_SIZES = (2, 4, 8, 16)
REPEATS = 31
WARM_UPS = 3


class CopyDevice(Protocol):
    """Where tables are copied to."""

    def direct(self, host: torch.Tensor) -> torch.Tensor:
        """Copy pageable memory, and wait for it."""

    def pinned(self, host: torch.Tensor) -> torch.Tensor:
        """Pin a copy of it, copy that without waiting, then wait."""


class CudaCopies:
    """Copies to the current CUDA device."""

    def direct(self, host: torch.Tensor) -> torch.Tensor:
        """Copy pageable memory, and wait for it."""
        moved = host.to("cuda")
        torch.cuda.synchronize()
        return moved

    def pinned(self, host: torch.Tensor) -> torch.Tensor:
        """Pin a copy of it, copy that without waiting, then wait."""
        moved = host.pin_memory().to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        return moved


def layout_tables(lengths: tuple[int, ...], cp_size: int) -> dict[str, torch.Tensor]:
    """Tables of rank 0, int64 on the host, for the lengths at a CP size."""
    pack: Pack = pack_sequences(lengths, cp_size=cp_size)
    return {
        "query_positions": torch.tensor(expand_runs(local_runs(pack, 0)), dtype=torch.int64),
        "key_reorder": torch.tensor(inverse_permutation(pack), dtype=torch.int64),
    }


def copy_evidence(
    lengths: tuple[int, ...],
    device: CopyDevice | None,
    *,
    global_rank: int,
    why_not: str = "",
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[CopyEvidence]:
    """Measure each table at each CP size.

    Args:
        lengths: Real lengths of the pack's sequences.
        device: Where to copy to, None where there is nothing.
        global_rank: Who measures.
        why_not: What is missing, with ``device`` None.
        clock: Seconds; tests hand in their own.
    """
    for cp_size in CP_SIZES:
        for name, table in layout_tables(lengths, cp_size).items():
            size = table.numel() * table.element_size()
            if device is None:
                yield CopyEvidence(
                    global_rank=global_rank,
                    cp_size=cp_size,
                    table=name,
                    bytes=size,
                    why_not=why_not,
                )
            else:
                yield _measured(table, device, global_rank, cp_size, name, clock)


def _measured(
    table: torch.Tensor,
    device: CopyDevice,
    global_rank: int,
    cp_size: int,
    name: str,
    clock: Callable[[], float],
) -> CopyEvidence:
    """Time both sorts in turn, so that what disturbs the machine disturbs both."""
    equal, pairs = True, []
    for turn in range(WARM_UPS + REPEATS):
        times = []
        for copy in (device.direct, device.pinned):
            begin = clock()
            moved = copy(table)
            times.append(clock() - begin)
            equal = equal and torch.equal(moved.cpu(), table)
        if turn >= WARM_UPS:
            pairs.append((times[0], times[1]))
    ratios = [direct / pinned for direct, pinned in pairs if pinned > 0] or [0.0, 0.0]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return CopyEvidence(
        global_rank=global_rank,
        cp_size=cp_size,
        table=name,
        bytes=table.numel() * table.element_size(),
        repeats=len(pairs),
        equal=equal,
        direct_s=statistics.median(direct for direct, _pinned in pairs),
        pinned_s=statistics.median(pinned for _direct, pinned in pairs),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
    )
