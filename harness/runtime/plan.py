"""From loaded scenarios to what each rank of this run is asked to do."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from harness.record.codec import dumps
from harness.record.verdict import ExitCode
from harness.runtime.inject import InjectionError, for_scenario, parse_injection
from harness.runtime.limits import PhaseLimits
from harness.runtime.options import Isolation, Options, UsageError
from harness.runtime.overrides import parse_overrides
from harness.runtime.task import Task
from harness.runtime.world import World
from harness.scenario import select as choose
from harness.scenario.collectors import parse_collectors
from harness.scenario.spec import Scenario

Device = Literal["cpu", "cuda"]


class Loaded(Protocol):
    """A scenario with the place it was read from."""

    @property
    def scenario(self) -> Scenario:
        """The resolved scenario."""

    @property
    def file(self) -> str:
        """The file as given."""

    @property
    def line(self) -> int:
        """1-based line of its document."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A scenario with its place in this run.

    Attributes:
        file: Where it was read from, as ``file:line``.
        num_ranks: Processes it gets.
        missing: What this node lacks for it; then it is not run, and says so.
        repeat: Attempts to make.
        first_rank: Local rank of its rank 0, where others run beside it.
    """

    scenario: Scenario
    file: str
    num_ranks: int
    device: Device
    missing: str | None = None
    repeat: int = 1
    first_rank: int = 0

    @property
    def group_key(self) -> str:
        """Scenarios with equal keys may share processes one after the other.

        Ranks, device, level and everything that is set up once per process are equal; layouts,
        values and limits may differ.
        """
        kernels = replace(self.scenario.kernels, score_chunk_bytes=None)
        overlays = sorted(self.scenario.overlays)
        parts = (self.num_ranks, self.device, self.scenario.level, dumps(kernels), overlays)
        return repr(parts)


def select(loaded: Iterable[Loaded], options: Options) -> tuple[Loaded, ...]:
    """Return the scenarios that ``-k``, ``-t`` and ``--ids`` ask for.

    Raises:
        UsageError: for an expression that cannot be read, or when nothing is left of something.
    """
    everything = tuple(loaded)
    try:
        kept = choose.select(
            (item.scenario for item in everything),
            expression=options.keyword,
            tags=options.tags,
        )
    except choose.ExpressionError as error:
        raise UsageError([str(error)]) from error
    ids = {scenario.id for scenario in kept}
    if options.ids is not None:
        ids &= _listed(options.ids, {item.scenario.id for item in everything})
    if everything and not ids:
        raise UsageError(
            [
                f"none of {len(everything)} scenarios matches -k {options.keyword!r} "
                f"and -t {', '.join(options.tags) or '(any)'}; loosen them, or see "
                "`dsa-harness list`"
            ],
            ExitCode.NOTHING_RAN,
        )
    return tuple(item for item in everything if item.scenario.id in ids)


def _listed(path: str, there: set[str]) -> set[str]:
    """Read the ids of a file; one that no scenario has is a mistake somewhere."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError([f"--ids {path}: cannot be read: {error}"]) from error
    listed = {line.strip() for line in lines if line.strip()}
    unknown = sorted(listed - there)
    if unknown:
        raise UsageError(
            [f"--ids {path}: no scenario of the given paths is called {name}" for name in unknown]
        )
    return listed


def plan(
    loaded: Iterable[Loaded], world: World, options: Options, *, num_gpus: int
) -> tuple[Planned, ...]:
    """Give each scenario its ranks and device.

    Collectives on GPUs need one for each rank; where there are fewer, the scenario is kept as one
    that cannot run here. At scorer level the ranks make do with what there is.

    Raises:
        UsageError: one line for each scenario that needs more ranks than there are, and for each
            injection that no scenario or rank is there for.
    """
    planned = []
    problems = []
    # One device serves as many ranks as may share it.
    num_gpus *= options.ranks_per_gpu
    overrides = parse_overrides(options.modelled, options.overlay)
    for item in loaded:
        scenario = overrides.apply(item.scenario)
        on_gpu = num_gpus > 0 and scenario.kernels.source != "modelled"
        due = scenario.num_ranks
        if scenario.level == "scorer":
            due = min(world.world_size, len(scenario.logical_cp_ranks))
            due = min(due, num_gpus) if on_gpu else due
        if due > world.world_size:
            problems.append(_too_few(item, due, world))
            continue
        here = min(due, world.local_world_size)
        short = on_gpu and (due > num_gpus or here > num_gpus // world.num_nodes)
        planned.append(
            Planned(
                scenario=scenario,
                file=f"{item.file}:{item.line}",
                num_ranks=due,
                device="cuda" if on_gpu else "cpu",
                missing=_missing_gpus(due, world, num_gpus, options) if short else None,
                repeat=options.repeat or scenario.repeat,
            )
        )
    if not problems:
        problems = _useless_injections(planned, options) + _unreadable_injections(planned)
    if problems:
        raise UsageError(problems)
    return tuple(planned)


def _missing_gpus(due: int, world: World, num_gpus: int, options: Options) -> str:
    shared = options.ranks_per_gpu
    due, num_gpus = -(-due // shared), num_gpus // shared
    if world.num_nodes == 1:
        more = -(-due // num_gpus) * shared
        return f"{due} GPUs on this node, which has {num_gpus} (--ranks-per-gpu {more} shares them)"
    each = num_gpus // world.num_nodes
    here = min(due, -(-world.local_world_size // shared))
    return f"{here} GPUs on each of {world.num_nodes} nodes, which have {each} each"


def _too_few(item: Loaded, due: int, world: World) -> str:
    parallel = item.scenario.parallel
    return (
        f"{item.file}:{item.line}: {item.scenario.id} needs {due} ranks "
        f"(context parallel {due // parallel.tensor_model_parallel_size} * tensor parallel "
        f"{parallel.tensor_model_parallel_size}), this run has {world.world_size}; start it with "
        f"{ranks_flag(world, due)}, or use level: scorer, where any number of ranks serves"
    )


def ranks_flag(world: World, ranks: int) -> str:
    """Return what starts that many ranks: the launcher's flag, and that of ``dsa-harness run``."""
    flag = "--ntasks" if world.launcher == "srun" else "--nproc-per-node"
    return f"{flag} {ranks} (dsa-harness run: --ranks {ranks})"


def _unreadable_injections(planned: Sequence[Planned]) -> list[str]:
    """The file checks know the form of a scenario's own injections, and not all kinds."""
    problems = []
    for item in planned:
        for text in item.scenario.inject:
            try:
                parse_injection(text)
            except InjectionError as error:
                problems.append(f"{item.file}: inject: {str(error).removeprefix('--inject: ')}")
    return problems


def _useless_injections(planned: Sequence[Planned], options: Options) -> list[str]:
    """An injection that hits nothing would make a run look healthier than it was meant to be."""
    problems = []
    for text in options.inject:
        hit = [
            item
            for item in planned
            for injection in for_scenario([text], item.scenario.id)
            if injection.global_rank < item.num_ranks
        ]
        if planned and not hit:
            problems.append(
                f"--inject {text}: no scenario of this run has that id and rank; check the rank "
                "number and the text after the second @"
            )
    return problems


def make_tasks(
    item: Planned,
    *,
    attempt: int,
    folder: Path,
    store: Path,
    isolation: Isolation,
    options: Options,
) -> tuple[Task, ...]:
    """Return one task per rank of a scenario.

    At scorer level the logical context-parallel ranks are dealt out to the ranks in turn.
    """
    scenario = item.scenario
    logical = scenario.logical_cp_ranks
    threads = max(1, len(os.sched_getaffinity(0)) // item.num_ranks)
    limits = PhaseLimits(scenario_s=scenario.limits.time_s)
    return tuple(
        Task(
            scenario=scenario,
            attempt=attempt,
            global_rank=rank,
            local_rank=item.first_rank + rank,
            world_size=item.num_ranks,
            store=str(store),
            folder=str(folder),
            cp_ranks=logical[rank :: item.num_ranks] if scenario.level == "scorer" else (),
            num_threads=threads,
            device=item.device,
            megatron=options.megatron,
            inject=options.inject,
            evidence=parse_collectors(options.evidence) if options.evidence else (),
            allow_mixed=options.allow_mixed,
            ranks_per_gpu=options.ranks_per_gpu,
            bare=options.bare,
            core_dumps=options.core_dumps,
            dump_bytes=options.dump_bytes,
            dump_all=options.dump_all,
            isolation=isolation,
            limits=limits,
            engine=options.engine,
        )
        for rank in range(item.num_ranks)
    )
