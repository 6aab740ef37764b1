"""Ranks from torchrun, from an srun step, or none."""

import pytest

from harness.runtime.world import World, WorldError

TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "TORCHELASTIC_RUN_ID": "abc",
    "TORCHELASTIC_RESTART_COUNT": "2",
}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "5",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NUM_NODES": "3",
}


def test_torchrun():
    world = World.from_environment(TORCHRUN)
    assert (world.global_rank, world.local_rank, world.world_size) == (5, 1, 8)
    assert (world.num_nodes, world.group_rank, world.restart_count) == (2, 1, 2)
    assert world.run_id == "abc" and world.launcher == "torchrun"
    assert not world.is_node_leader and not world.is_run_leader


def test_the_launcher_s_own_count_of_nodes_is_believed():
    assert World.from_environment({**TORCHRUN, "GROUP_WORLD_SIZE": "3"}).num_nodes == 3


def test_the_second_node_s_leader_does_not_lead_the_run():
    world = World.from_environment({**TORCHRUN, "RANK": "4", "LOCAL_RANK": "0"})
    assert world.is_node_leader and not world.is_run_leader


def test_torchrun_s_virtual_local_ranks_are_all_zero_and_are_told_apart():
    workers = [
        World.from_environment({**TORCHRUN, "RANK": str(rank), "LOCAL_RANK": "0"})
        for rank in (4, 5, 6, 7)
    ]
    assert [world.local_rank for world in workers] == [0, 1, 2, 3]


def test_srun_step():
    world = World.from_environment(SRUN)
    assert (world.global_rank, world.local_rank, world.world_size) == (3, 1, 5)
    assert world.local_world_size == 2 and world.launcher == "srun"
    assert world.num_nodes == 3
    assert world.run_id == "slurm-77.0"
    last = {**SRUN, "SLURM_PROCID": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "2"}
    assert World.from_environment(last).local_world_size == 1


def test_a_batch_script_is_no_srun_step():
    batch = {key: value for key, value in SRUN.items() if key != "SLURM_STEP_ID"}
    assert World.from_environment(batch) == World()


def test_torchrun_inside_an_srun_step_wins():
    assert World.from_environment({**SRUN, **TORCHRUN}).launcher == "torchrun"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"WORLD_SIZE": None}, "WORLD_SIZE is not set"),
        ({"LOCAL_RANK": "one"}, "LOCAL_RANK: expected an integer, found 'one'"),
        ({"RANK": "8"}, "found rank 8 and size 8"),
    ],
)
def test_contradictions(change, message):
    env = {key: value for key, value in {**TORCHRUN, **change}.items() if value is not None}
    with pytest.raises(WorldError, match=message):
        World.from_environment(env)


def test_a_task_list_that_cannot_be_read():
    with pytest.raises(WorldError, match="cannot read '2x2'"):
        World.from_environment({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2x2"})
