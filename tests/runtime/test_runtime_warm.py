"""What the forkserver does once so that no rank has to."""

from harness.record import codec
from harness.runtime.task import Task


def test_the_type_hints_of_a_task_are_known_before_a_rank_reads_one(make_places, make_planned):
    (task, _) = make_places().tasks(make_planned(), 1, "scenario")
    codec._hints.cache_clear()
    codec.learn(Task)
    known = codec._hints.cache_info().misses
    assert Task.from_json(task.to_json()) == task
    assert known > 10
    assert codec._hints.cache_info().misses == known
