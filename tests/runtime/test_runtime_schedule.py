"""Scenarios beside each other: on ranks of their own, refused where that would mean nothing."""

import threading
from dataclasses import replace

import pytest

from harness.runtime.options import Options
from harness.runtime.schedule import Ranks, jobs_problems, num_jobs, side_by_side
from harness.runtime.world import World

WORLD = World(world_size=4, local_world_size=4, launcher="torchrun")
TWO = Options(scenarios=("s.yaml",), jobs=2)


def test_ranks_are_handed_out_in_runs_of_neighbours():
    ranks = Ranks(4)
    assert [ranks.take(2), ranks.take(1), ranks.take(2), ranks.take(1)] == [0, 2, None, 3]
    ranks.give_back(0, 2)
    ranks.give_back(3, 1)
    assert ranks.take(3) is None
    assert ranks.take(2) == 0


def test_what_may_not_run_beside_others(make_planned):
    plain, timed = make_planned("a"), make_planned("b", tags=("timing",))
    assert jobs_problems([plain], WORLD, TWO, "scenario") == []
    assert jobs_problems([plain, timed], WORLD, replace(TWO, jobs=1), "group") == []
    (problem,) = jobs_problems([plain, timed], WORLD, TWO, "scenario")
    assert problem.startswith("--jobs 2: b (tiny.yaml:1) is tagged timing")
    for isolation in ("group", "none"):
        (problem,) = jobs_problems([plain], WORLD, TWO, isolation)
        assert f"expected --isolation scenario, found {isolation}" in problem
    nodes = World(world_size=4, local_world_size=2, num_nodes=2, launcher="torchrun")
    (problem,) = jobs_problems([plain], nodes, TWO, "scenario")
    assert "expected a run on one node, found 2" in problem


@pytest.mark.parametrize(
    ("jobs", "ranks", "found"), [(2, 2, 2), (3, 2, 2), ("auto", 1, 4), (8, 4, 1)]
)
def test_no_more_jobs_than_ranks(make_planned, jobs, ranks, found):
    item = make_planned("a", ranks=ranks)
    assert num_jobs(replace(TWO, jobs=jobs), [item], WORLD) == found


class Recorder:
    """Attempts that last until they are told to end."""

    def __init__(self):
        self.lock = threading.Lock()
        self.busy = {}
        self.most = 0
        self.seen = []

    def run(self, item, number):
        mine = set(range(item.first_rank, item.first_rank + item.num_ranks))
        with self.lock:
            taken = set().union(*self.busy.values()) if self.busy else set()
            assert not mine & taken, "two attempts on one rank"
            self.busy[item.scenario.id, number] = mine
            self.most = max(self.most, len(self.busy))
            self.seen.append((item.scenario.id, number))
        threading.Event().wait(0.05)
        with self.lock:
            del self.busy[item.scenario.id, number]
        if item.scenario.id == "bad":
            raise OSError("no")
        return item.scenario.id


def _run(items, jobs, stop=lambda: False):
    recorder = Recorder()
    numbers = {}

    def number(item):
        return numbers.get(item.scenario.id, 0) + 1

    ended = []
    for item, attempt, done in side_by_side(
        items, ranks=Ranks(4), jobs=jobs, number=number, run=recorder.run, stop=stop
    ):
        numbers[item.scenario.id] = attempt
        ended.append((item.scenario.id, attempt))
        if item.scenario.id == "bad":
            with pytest.raises(OSError, match="no"):
                done()
        else:
            assert done() == item.scenario.id
    return recorder, ended


def test_attempts_run_side_by_side_on_ranks_of_their_own(make_planned):
    items = [make_planned(name, ranks=n) for name, n in (("a", 2), ("b", 4), ("c", 1), ("bad", 1))]
    recorder, ended = _run([*items, items[0], items[0]], 3)
    assert sorted(ended) == [("a", 1), ("a", 2), ("a", 3), ("b", 1), ("bad", 1), ("c", 1)]
    assert recorder.most == 3, "a, c and bad fit beside each other"
    assert recorder.seen[0] == ("a", 1)


def test_no_more_at_a_time_than_asked_for(make_planned):
    items = [make_planned(name, ranks=1) for name in "abcdef"]
    assert _run(items, 2)[0].most == 2


def test_nothing_starts_after_a_stop(make_planned):
    items = [make_planned(name, ranks=4) for name in "abcd"]
    ended = []
    recorder = Recorder()
    for item, _, _ in side_by_side(
        items,
        ranks=Ranks(4),
        jobs=2,
        number=lambda item: 1,
        run=recorder.run,
        stop=lambda: bool(ended),
    ):
        ended.append(item.scenario.id)
    assert ended == ["a"]
