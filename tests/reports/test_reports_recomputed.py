"""Tables of replays and of memory: what a reader is told of each rank."""

from __future__ import annotations

from dataclasses import replace

from sample_parts import attempt, result, selection, stats

from harness.record.memory import MemoryEvidence
from harness.record.replay import STEP, ReplayEvidence
from harness.record.verdict import Outcome, Verdict
from reports.markdown import render_markdown
from reports.recomputed import memory_table, replay_table
from reports.summary import summarise

REPLAY = ReplayEvidence(
    global_rank=0,
    cp_rank=0,
    microbatch=1,
    layer=2,
    seed=0,
    scope=STEP,
    replays=1,
    group="0 1",
    replay_group="0 1",
    path="none",
    replay_path="none",
    tables=4,
    rows=8,
)


def summary(**evidence):
    good = {"selections": (selection(0, stats()),)}
    one = result("history/a", [attempt(Verdict.PASS, **good, **evidence)], Outcome.EXPECTED)
    return summarise(None, [one])


def test_equal_replays_of_several_ranks_are_one_row():
    (row,) = replay_table(summary(replays=(REPLAY, replace(REPLAY, global_rank=1)))).rows
    assert row[1:6] == ("1", "2", "a step", "1", "0 1")
    assert row[-2:] == ("equal", "0, 1")


def test_a_replay_that_differs_says_how():
    wrong = replace(REPLAY, replay_group="0", rows_different=3, first_different=4)
    (row,) = replay_table(summary(replays=(wrong,))).rows
    assert row[-2].startswith("gathered over ranks [0], the forward [0 1]; attends with other keys")
    assert row[6] == "3 of 8, 0 tied"


def looks(step: int) -> tuple[MemoryEvidence, ...]:
    return tuple(
        MemoryEvidence(
            global_rank=0,
            cp_rank=0,
            microbatch=index,
            seed=0,
            forward=index + 1,
            live_tensors=1,
            live_bytes=1000 + step * index,
            objects=1,
            resident_bytes=2**29,
        )
        for index in range(9)
    )


def test_memory_is_one_row_for_each_rank_with_its_growth():
    (row,) = memory_table(summary(memory=looks(0))).rows
    assert row[1:] == ("0", "9", "1000 and 1000", "0 bytes", "512 and 512", "0 bytes")
    (row,) = memory_table(summary(memory=looks(64))).rows
    assert row[3:5] == ("1192 and 1512", "64 bytes")


def test_both_are_part_of_the_report_and_not_drawn_twice():
    text = render_markdown(summary(memory=looks(0), replays=(REPLAY,)))
    assert text.count("Attention computed again in backward") == 1
    assert text.count("Memory from microbatch to microbatch") == 1
    assert "live bytes" not in text
