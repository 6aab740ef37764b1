"""Which attempts run when: one after the other, or several at a time on ranks of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace

from harness.record.ending import OUT_OF_TIME
from harness.runtime.attempts import Executed
from harness.runtime.limits import POLL_S
from harness.runtime.options import Isolation, Options
from harness.runtime.plan import Planned
from harness.runtime.world import World

TIMING = "timing"
"""Tag of scenarios that measure time, which nothing may run beside."""


def jobs_problems(
    planned: Sequence[Planned], world: World, options: Options, isolation: Isolation
) -> list[str]:
    """Return one line for each reason why scenarios may not run beside each other."""
    if options.jobs == 1:
        return []
    asked = f"--jobs {options.jobs}"
    problems = []
    if isolation != "scenario":
        problems.append(
            f"{asked}: expected --isolation scenario, found {isolation}, whose processes take one "
            "scenario at a time; add --isolation scenario, or leave --jobs out"
        )
    if world.num_nodes > 1:
        problems.append(
            f"{asked}: expected a run on one node, found {world.num_nodes}; leave --jobs out"
        )
    problems += [
        f"{asked}: {item.scenario.id} ({item.file}) is tagged {TIMING}, and times taken beside "
        f"other scenarios mean nothing; leave --jobs out, or select with -t or -k"
        for item in planned
        if TIMING in item.scenario.tags
    ]
    return problems


def num_jobs(options: Options, planned: Sequence[Planned], world: World) -> int:
    """Return how many scenarios run at the same time."""
    smallest = min((item.num_ranks for item in planned), default=1)
    most = max(1, world.world_size // smallest)
    return most if options.jobs == "auto" else min(most, options.jobs)


class Budget:
    """Time after which nothing further starts."""

    def __init__(self, seconds: int | None) -> None:
        self._seconds = seconds
        self._begin_s = time.monotonic()

    @property
    def spent(self) -> bool:
        """True once it is used up."""
        return self._seconds is not None and time.monotonic() - self._begin_s >= self._seconds

    @property
    def missing(self) -> str:
        """What scenarios lack that it left no time for."""
        return f"{OUT_OF_TIME} of {self._seconds} s"


class Ranks:
    """Local ranks that are free, handed out in runs of neighbours."""

    def __init__(self, num_ranks: int) -> None:
        self._free = [True] * num_ranks

    def take(self, count: int) -> int | None:
        """Return the first of ``count`` neighbouring ranks, None when there are not so many."""
        for first in range(len(self._free) - count + 1):
            if all(self._free[first : first + count]):
                self._free[first : first + count] = [False] * count
                return first
        return None

    def give_back(self, first: int, count: int) -> None:
        """Free ranks again."""
        self._free[first : first + count] = [True] * count


Ended = tuple[Planned, int, Callable[[], Executed]]
"""An attempt that is over: scenario, number, and what returns or raises its outcome."""


def side_by_side(
    due: Sequence[Planned],
    *,
    ranks: Ranks,
    jobs: int,
    number: Callable[[Planned], int],
    run: Callable[[Planned, int], Executed],
    stop: Callable[[], bool],
) -> Iterator[Ended]:
    """Run attempts on disjoint ranks and yield each as it ends, in the caller's thread.

    Attempts start in the order given, except that a small one may pass one that waits for ranks.
    Two attempts of one scenario never run at the same time.

    Args:
        due: One entry for each attempt.
        ranks: Ranks to run on.
        jobs: Most attempts at a time.
        number: Returns the number of a scenario's next attempt.
        run: Executes one attempt; called in threads.
        stop: No further attempt starts once it says True.
    """
    waiting = list(due)
    running: dict[Future[Executed], tuple[Planned, int]] = {}
    with ThreadPoolExecutor(jobs, thread_name_prefix="attempt") as pool:
        while (waiting and not stop()) or running:
            for item in list(waiting):
                if stop() or len(running) >= jobs:
                    break
                if any(other.scenario.id == item.scenario.id for other, _ in running.values()):
                    continue
                first = ranks.take(item.num_ranks)
                if first is not None:
                    waiting.remove(item)
                    placed = replace(item, first_rank=first)
                    attempt = number(item)
                    running[pool.submit(run, placed, attempt)] = placed, attempt
            done, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
            for future in done:
                item, attempt = running.pop(future)
                ranks.give_back(item.first_rank, item.num_ranks)
                yield item, attempt, future.result
