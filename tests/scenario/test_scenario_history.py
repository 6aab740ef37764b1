"""Keys of histories: packs side by side, contracts of size 1, evaluation steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.scenario.parts import num_parts, own_scenario, part_of
from harness.scenario.rules import check
from harness.scenario.spec import (
    MicrobatchSpec,
    ModelSpec,
    ParallelSpec,
    Scenario,
    TrainingSpec,
)

SIDE_BY_SIDE = MicrobatchSpec(sequences=(32, 16), cp=2, beside=((64,),))
DYNAMIC = ParallelSpec(context_parallel_size=4, dynamic_context_parallel=True)
SCENARIO = Scenario(
    id="t",
    summary="",
    model=ModelSpec(name="small"),
    parallel=DYNAMIC,
    microbatches=(SIDE_BY_SIDE, MicrobatchSpec(sequences=(64,))),
)


def messages(scenario):
    return [f"{'.'.join(map(str, f.path))}: {f.message}" for f in check(scenario)]


def test_ranks_are_cut_into_runs_of_neighbours():
    assert [part_of(SCENARIO, SIDE_BY_SIDE, rank) for rank in range(4)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
    ]
    assert num_parts(SCENARIO, SIDE_BY_SIDE) == 2


def test_tensor_parallel_ranks_share_a_part():
    parallel = replace(DYNAMIC, context_parallel_size=2, tensor_model_parallel_size=2)
    scenario = replace(SCENARIO, parallel=parallel)
    one = replace(SIDE_BY_SIDE, cp=1)
    assert [part_of(scenario, one, rank)[0] for rank in range(4)] == [0, 0, 1, 1]


def test_a_rank_runs_the_pack_of_its_part():
    assert own_scenario(SCENARIO, 1).microbatches[0].sequences == (32, 16)
    own = own_scenario(SCENARIO, 3)
    assert own.microbatches[0].sequences == (64,)
    assert own.microbatches[1] == SCENARIO.microbatches[1]


def test_a_larger_effective_size_makes_parts_of_the_configured_one():
    scenario = replace(
        SCENARIO,
        parallel=replace(DYNAMIC, context_parallel_size=1),
        microbatches=(
            MicrobatchSpec(sequences=(64,), beside=((32,),)),
            MicrobatchSpec(sequences=(64,), cp=2),
        ),
    )
    assert scenario.num_ranks == 2
    assert messages(scenario) == []


def changed(**changes):
    return replace(SCENARIO, microbatches=(replace(SIDE_BY_SIDE, **changes),))


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        (changed(beside=((64,), (32,))), "4 ranks make 2 groups of 2, so that 1 further packs"),
        (changed(beside=((64,),), tail_padding=8), "packs side by side are padded by padded: auto"),
        (
            replace(changed(), parallel=ParallelSpec(context_parallel_size=4)),
            "packs run side by side under Dynamic CP at levels attention and model",
        ),
        (replace(changed(), level="scorer"), "packs run side by side under Dynamic CP"),
        (changed(cp_group="none"), "no group stands for effective CP 1, found 2; set cp: 1"),
        (
            replace(
                SCENARIO,
                parallel=ParallelSpec(),
                microbatches=(MicrobatchSpec(sequences=(8,), cp_group="none"),),
            ),
            "only a microbatch with a group of its own can have none",
        ),
        (
            replace(
                SCENARIO,
                level="scorer",
                parallel=ParallelSpec(),
                microbatches=(MicrobatchSpec(sequences=(8,), forward_only=True),),
            ),
            "level scorer trains nothing that an evaluation step could stand between",
        ),
    ],
)
def test_what_cannot_be_is_said_with_what_to_change(scenario, said):
    assert any(said in message for message in messages(scenario)), messages(scenario)


def test_one_rank_may_have_no_group():
    assert messages(changed(cp=1, beside=(), cp_group="none")) == []


TRAINED = replace(
    SCENARIO,
    parallel=ParallelSpec(),
    microbatches=(
        MicrobatchSpec(sequences=(8,)),
        MicrobatchSpec(sequences=(8,), forward_only=True),
    ),
    training=TrainingSpec(backward=True),
)


def test_an_evaluation_step_has_no_backward():
    assert messages(replace(TRAINED, schedule=("F0", "F1", "B0"))) == []
    (found,) = messages(replace(TRAINED, schedule=("F0", "F1", "B0", "B1")))
    assert "B1: microbatch 1 is forward_only and has no backward" in found


def test_evaluation_without_training_is_a_slip():
    plain = replace(TRAINED, training=TrainingSpec())
    (found,) = check(plain)
    assert found.severity.value == "warning"
