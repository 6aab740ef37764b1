"""What one rank child is asked to do; travels as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.record.codec import dumps, loads
from harness.runtime.limits import PhaseLimits
from harness.runtime.place import Place
from harness.scenario.spec import Scenario

ENGINE = "harness.runtime.engine:execute"
"""What runs a scenario on a rank, as ``module:function``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One attempt of one scenario on one rank.

    Attributes:
        attempt: Number of the attempt, from 1.
        world_size: Ranks of this scenario (not of the run).
        place: Node of the rank, and how it meets ranks on others.
        store: File with the address of the attempt's ``TCPStore``: node-local, and over several
            nodes in the shared run folder.
        folder: ``ranks/<scenario>/<attempt>`` of the run folder, absolute.
        cp_ranks: Logical context-parallel ranks this child runs (scorer level), else its own.
        num_threads: Threads torch may use in this child.
        evidence: Words of ``--evidence``.
        inject: Faults as given with ``--inject``; the child applies those meant for its rank.
        allow_mixed: With a GPU, whether missing libraries may be stood in for.
        ranks_per_gpu: Ranks that share each device of the node.
        bare: With a GPU, not to wait for it at the end of each phase.
        core_dumps: With a GPU, to ask for core dumps of faulting kernels.
        dump_bytes: What a rank may write of the inputs of wrong selections.
        dump_all: To dump known, expected and modelled ones as well.
        engine: ``module:function`` called as ``function(task, journal)``.
    """

    scenario: Scenario
    attempt: int = 1
    global_rank: int
    local_rank: int
    world_size: int
    store: str
    folder: str
    cp_ranks: tuple[int, ...] = ()
    num_threads: int = 1
    device: Literal["cpu", "cuda"] = "cpu"
    megatron: str | None = None
    inject: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    allow_mixed: bool = False
    ranks_per_gpu: int = 1
    bare: bool = False
    core_dumps: bool = False
    dump_bytes: int = 0
    dump_all: bool = False
    isolation: Literal["scenario", "group", "none"] = "scenario"
    limits: PhaseLimits = field(default_factory=PhaseLimits)
    engine: str = ENGINE
    place: Place = field(default_factory=Place)

    @property
    def planted(self) -> tuple[str, ...]:
        """Faults to plant: the scenario's own and those of ``--inject``."""
        return (*self.scenario.inject, *self.inject)

    def _file(self, suffix: str) -> str:
        return str(Path(self.folder) / f"rank{self.global_rank}.{suffix}")

    @property
    def journal(self) -> str:
        """Path of the rank's journal."""
        return self._file("jsonl")

    @property
    def stacks(self) -> str:
        """Path of the rank's Python stacks."""
        return self._file("stacks")

    @property
    def native_stacks(self) -> str:
        """Path of the rank's stacks with native frames, where py-spy wrote them."""
        return self._file("pyspy.json")

    @property
    def dumps(self) -> Path:
        """Folder of core dumps: one for the run, since a process keeps its first setting."""
        return Path(self.folder).parents[2] / "dumps"

    @property
    def stdout(self) -> str:
        """Path that receives the rank's standard output."""
        return self._file("out")

    @property
    def stderr(self) -> str:
        """Path that receives the rank's standard error."""
        return self._file("err")

    @property
    def worker(self) -> int:
        """Worker of the run whose process this is, counted over all nodes."""
        return self.global_rank if self.place.num_nodes > 1 else self.local_rank

    def to_json(self) -> str:
        """Return the task as one line of JSON."""
        return dumps(self)

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Read a task back."""
        return loads(cls, text)
