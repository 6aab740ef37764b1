"""Place of this worker among all workers, as torchrun or plain ``srun`` tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


class WorldError(ValueError):
    """The environment of the launcher is incomplete or contradicts itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Ranks of one worker and sizes of the run.

    Attributes:
        group_rank: Index of this worker's node (torchrun's ``GROUP_RANK``).
        run_id: Name of the run, equal on all its workers.
        restart_count: How often the launcher restarted its workers.
        launcher: ``torchrun``, ``srun`` or ``none`` (started by hand, one worker).
    """

    global_rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    group_rank: int = 0
    num_nodes: int = 1
    run_id: str = "none"
    restart_count: int = 0
    launcher: str = "none"

    def __post_init__(self) -> None:
        """Refuse ranks outside their sizes."""
        for rank, size, what in (
            (self.global_rank, self.world_size, "RANK and WORLD_SIZE"),
            (self.local_rank, self.local_world_size, "LOCAL_RANK and LOCAL_WORLD_SIZE"),
        ):
            if not 0 <= rank < size:
                raise WorldError(
                    f"{what}: expected 0 <= rank < size, found rank {rank} and size {size}; "
                    "start the run with torchrun, srun or `dsa-harness run`"
                )

    @property
    def is_node_leader(self) -> bool:
        """True on the one worker of each node that starts and supervises processes."""
        return self.local_rank == 0

    @property
    def is_run_leader(self) -> bool:
        """True on the one worker that validates, creates the run folder and writes records."""
        return self.global_rank == 0

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> World:
        """Read the variables of torchrun, else those of an ``srun`` step, else one worker.

        Raises:
            WorldError: naming the variable that is missing or no integer.
        """
        if "RANK" in env:
            global_rank = _integer(env, "RANK")
            local_world_size = _integer(env, "LOCAL_WORLD_SIZE")
            world_size = _integer(env, "WORLD_SIZE")
            nodes = -(-world_size // local_world_size) if local_world_size > 0 else 1
            num_nodes = _integer(env, "GROUP_WORLD_SIZE", str(nodes))
            # With --virtual-local-rank every LOCAL_RANK is 0 (each worker sees its own GPU as
            # device 0), but a node's ranks are consecutive all the same. Nodes of unequal size
            # have no such rule, and their LOCAL_RANK is believed.
            even = local_world_size > 0 and num_nodes * local_world_size == world_size
            place = global_rank % local_world_size if even else 0
            return cls(
                global_rank=global_rank,
                local_rank=_integer(env, "LOCAL_RANK") or place,
                world_size=world_size,
                local_world_size=local_world_size,
                group_rank=_integer(env, "GROUP_RANK", "0"),
                num_nodes=num_nodes,
                run_id=_torchrun_id(env),
                restart_count=_integer(env, "TORCHELASTIC_RESTART_COUNT", "0"),
                launcher="torchrun",
            )
        # A batch script also carries SLURM_PROCID; only an srun step has a step id.
        if "SLURM_PROCID" in env and "SLURM_STEP_ID" in env:
            return cls(
                global_rank=_integer(env, "SLURM_PROCID"),
                local_rank=_integer(env, "SLURM_LOCALID"),
                world_size=_integer(env, "SLURM_NTASKS"),
                local_world_size=_slurm_tasks_here(env),
                group_rank=_integer(env, "SLURM_NODEID", "0"),
                num_nodes=_integer(env, "SLURM_STEP_NUM_NODES", env.get("SLURM_NNODES", "1")),
                run_id=f"slurm-{env.get('SLURM_JOB_ID', '0')}.{env['SLURM_STEP_ID']}",
                restart_count=_integer(env, "SLURM_RESTART_COUNT", "0"),
                launcher="srun",
            )
        return cls()


def _integer(env: Mapping[str, str], name: str, default: str | None = None) -> int:
    text = env.get(name, default)
    if text is None:
        raise WorldError(f"{name} is not set although the launcher's other variables are")
    try:
        return int(text)
    except ValueError:
        raise WorldError(f"{name}: expected an integer, found {text!r}") from None


def _torchrun_id(env: Mapping[str, str]) -> str:
    """Name of a torchrun run; without --rdzv-id all are called ``none`` and the address tells."""
    name = env.get("TORCHELASTIC_RUN_ID", "none")
    if name == "none" and "MASTER_PORT" in env:
        return f"none-{env.get('MASTER_ADDR', '')}-{env['MASTER_PORT']}"
    return name


def _slurm_tasks_here(env: Mapping[str, str]) -> int:
    """Tasks on this node from Slurm's compressed list, such as ``4(x2),3``."""
    text = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE")
    if not text:
        return _integer(env, "SLURM_NTASKS")
    counts: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", item.strip())
        if match is None:
            raise WorldError(f"SLURM_STEP_TASKS_PER_NODE: cannot read {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts[min(_integer(env, "SLURM_NODEID", "0"), len(counts) - 1)]
