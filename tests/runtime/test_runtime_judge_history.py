"""Replays and memory: each finding has its verdict; beside it the twin that is as it should be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.record.memory import MemoryEvidence, growth_of
from harness.record.replay import STEP, ReplayEvidence
from harness.record.verdict import Verdict
from harness.runtime.journal import Journal, read_journal
from harness.runtime.judge_memory import memory_deviations
from harness.runtime.judge_replay import replay_deviations
from harness.scenario.spec import (
    ExpectSpec,
    KernelsSpec,
    MicrobatchSpec,
    ModelSpec,
    Scenario,
    TrainingSpec,
)

SCENARIO = Scenario(
    id="t",
    summary="",
    model=ModelSpec(name="small", num_layers=2),
    level="model",
    kernels=KernelsSpec(dsa_kernel_backend="cudnn"),
    microbatches=(MicrobatchSpec(sequences=(8, 8)),) * 2,
    training=TrainingSpec(backward=True, recompute="full"),
)
REPLAY = ReplayEvidence(
    global_rank=1,
    cp_rank=1,
    microbatch=0,
    layer=1,
    seed=0,
    scope=STEP,
    replays=1,
    group="0 1",
    replay_group="0 1",
    path="packed_thd",
    replay_path="packed_thd",
    tables=4,
    rows=8,
)
KIB = 2**10


def journals(folder, *records):
    path = folder / "rank1.jsonl"
    journal = Journal(path, global_rank=1)
    for record in records:
        journal.evidence(record)
    journal.close()
    return [read_journal(path, global_rank=1)]


@pytest.mark.parametrize(
    ("changes", "verdict", "said"),
    [
        ({"replay_group": "0"}, Verdict.REPLAY_MISMATCH, "gathered over ranks [0], the forward"),
        ({"replay_group": ""}, Verdict.REPLAY_MISMATCH, "gathered over ranks [], the forward"),
        ({"tables_different": ("bounds",)}, Verdict.REPLAY_MISMATCH, "was served other bounds"),
        ({"rows_different": 3, "rows_tied": 1, "first_different": 5}, Verdict.REPLAY_MISMATCH,
         "other keys in 2 of 8 rows, first in row 5"),
        ({"replays": 0}, Verdict.WRONG_PATH, "expected 1 replays of its attention, found 0"),
        ({"replay_path": "decline"}, Verdict.WRONG_PATH, "packed_thd in the forward, decline"),
    ],
)  # fmt: skip
def test_a_replay_that_differs_names_rank_and_microbatch(tmp_path, changes, verdict, said):
    (found,) = replay_deviations(SCENARIO, journals(tmp_path, replace(REPLAY, **changes)))
    assert (found.verdict, found.kind, found.global_rank) == (verdict, "replay", 1)
    assert "layer 1 of microbatch 0 on cp_rank 1, computed again in a step of several" in found.text
    assert said in found.text


def test_an_equal_replay_and_one_with_ties_are_right(tmp_path):
    tied = replace(REPLAY, rows_different=2, rows_tied=2)
    assert replay_deviations(SCENARIO, journals(tmp_path, REPLAY, tied)) == ()


@pytest.mark.parametrize(
    ("training", "due"),
    [
        (TrainingSpec(recompute="full", recompute_method="block"), (True, False)),
        (TrainingSpec(recompute="full"), (True, True)),
        (TrainingSpec(recompute="selective"), (True, True)),
        (TrainingSpec(recompute="selective", recompute_modules=("mlp",)), (False, False)),
    ],
)
def test_a_layer_is_computed_again_if_and_only_if_it_is_asked(tmp_path, training, due):
    scenario = replace(SCENARIO, training=replace(training, backward=True))
    for layer, wanted in enumerate(due, start=1):
        for replays in (0, 1):
            record = replace(REPLAY, layer=layer, replays=replays)
            (tmp_path / "rank1.jsonl").unlink(missing_ok=True)
            found = replay_deviations(scenario, journals(tmp_path, record))
            assert bool(found) == (wanted != bool(replays)), (layer, replays)


def looks(live, resident=None):
    resident = [600 * 2**20] * len(live) if resident is None else resident
    return [
        MemoryEvidence(
            global_rank=1,
            cp_rank=1,
            microbatch=index,
            seed=0,
            forward=index + 1,
            live_tensors=10,
            live_bytes=bytes_,
            objects=100,
            resident_bytes=pages,
        )
        for index, (bytes_, pages) in enumerate(zip(live, resident, strict=True))
    ]


def bounded(bound):
    return replace(SCENARIO, expect=ExpectSpec(memory_per_microbatch=bound))


def test_what_grows_with_every_microbatch_is_a_leak_from_where_it_began(tmp_path):
    # Caches fill first; from microbatch 12 on something is held on to.
    live = [KIB * min(index, 4) + 64 * KIB * max(0, index - 11) for index in range(24)]
    (found,) = memory_deviations(bounded(KIB), journals(tmp_path, *looks(live)))
    assert (found.verdict, found.kind, found.global_rank) == (Verdict.STATE_LEAK, "memory", 1)
    assert "live_bytes on cp_rank 1 grow by" in found.text
    assert "from microbatch 16 on" in found.text


def test_caches_that_fill_and_pages_that_come_and_go_are_no_leak(tmp_path):
    live = [KIB * min(index, 7) for index in range(24)]
    pages = [(600 + (index * 7) % 11) * 2**20 for index in range(24)]
    assert memory_deviations(bounded(0), journals(tmp_path, *looks(live, pages))) == ()
    (tmp_path / "rank1.jsonl").unlink()
    kept = [600 * 2**20 + 88064 * index for index in range(24)]
    assert memory_deviations(bounded(0), journals(tmp_path, *looks(live, kept))) == ()


def test_a_growing_resident_set_is_a_leak_too(tmp_path):
    pages = [(600 + 4 * index) * 2**20 for index in range(24)]
    (found,) = memory_deviations(bounded(KIB), journals(tmp_path, *looks([0] * 24, pages)))
    assert "resident_bytes on cp_rank 1 grow by 4194304 bytes" in found.text


def test_growth_below_the_bound_and_growth_without_a_bound_are_not_judged(tmp_path):
    found = journals(tmp_path, *looks([512 * index for index in range(12)]))
    assert memory_deviations(bounded(KIB), found) == ()
    assert memory_deviations(SCENARIO, found) == ()


def test_too_few_looks_say_nothing_and_are_the_harness_s_error(tmp_path):
    (found,) = memory_deviations(bounded(KIB), journals(tmp_path, *looks([0] * 5)))
    assert found.verdict is Verdict.HARNESS_ERROR
    assert growth_of(looks([0] * 5)) == ()
    assert {growth.figure for growth in growth_of(looks([0] * 6))} == {
        "live_bytes",
        "resident_bytes",
    }
