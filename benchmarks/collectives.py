"""Journaled to bare time of a collective call on one rank, in one process.

Run with ``python benchmarks/collectives.py [--pairs 9]``. Both take turns, so that what disturbs
the machine disturbs both. The call is an ``all_reduce`` of four elements over gloo with itself, the
cheapest there is; 50 microseconds more for each call is the aim.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from harness.runtime import collectives
from harness.runtime.journal import Journal

CALLS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=9)
    pairs = parser.parse_args().pairs
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    bare, journaled = [], []
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(Path(folder) / "journal", global_rank=0)
        for _ in range(pairs):
            bare.append(_seconds())
            with collectives.journaled(journal):
                journaled.append(_seconds())
        journal.close()
    dist.destroy_process_group()
    ratios = [more / less for less, more in zip(bare, journaled, strict=True)]
    extra = statistics.median(more - less for less, more in zip(bare, journaled, strict=True))
    print(f"bare call      {1e6 * statistics.median(bare):7.1f} us")
    print(f"journaled call {1e6 * statistics.median(journaled):7.1f} us")
    print(f"ratio          {statistics.median(ratios):7.2f}, {1e6 * extra:.1f} us more (aim 50)")


def _seconds() -> float:
    tensor = torch.ones(4)
    begin_s = time.perf_counter()
    for _ in range(CALLS):
        dist.all_reduce(tensor)
    return (time.perf_counter() - begin_s) / CALLS


if __name__ == "__main__":
    main()
