"""Everything that is checked before a run writes its first byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.production.locate import BuildError, MegatronBuild, find_build
from harness.record.verdict import ExitCode
from harness.runtime.devices import num_gpus
from harness.runtime.fingerprint import collect
from harness.runtime.options import Isolation, Options, Supervision, UsageError
from harness.runtime.plan import Planned, plan, select
from harness.runtime.resume import (
    attempts_due_of,
    differences,
    plan_to_resume,
    read_environment,
    resumed_options,
)
from harness.runtime.run_folder import RunFolderError, check_writable
from harness.runtime.schedule import jobs_problems
from harness.runtime.world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """A run that can start.

    Attributes:
        options: What was asked for; of a run that is resumed, what was asked for then.
        isolation: As asked for, else by device.
        supervision: Who starts rank processes, as asked for, else by device.
        warnings: What the loader thinks is odd but usable.
        done: Ids of scenarios that need no further attempt, where a run is resumed.
    """

    options: Options
    planned: tuple[Planned, ...]
    build: MegatronBuild
    isolation: Isolation
    supervision: Supervision
    warnings: tuple[str, ...] = ()
    done: frozenset[str] = frozenset()


def check(world: World, options: Options) -> Preflight:
    """Check scenarios, selection, ranks, Megatron build and output folder, and write nothing.

    Raises:
        UsageError: with one line for every problem found, so that one round of repairs is enough.
    """
    if options.resume is not None:
        return _check_resume(world, options, Path(options.resume))
    from harness.scenario.loader import load  # pydantic: late, so that --help stays quick

    loaded = load(options.scenarios)
    found = tuple(str(problem) for problem in loaded.problems)
    problems = [] if loaded.ok else list(found)
    build = None
    try:
        build = find_build(options.megatron)
    except BuildError as error:
        problems.append(str(error))
    try:
        check_writable(Path(options.out))
    except RunFolderError as error:
        problems.append(str(error))
    problems += _node_problems(world, options.isolation)
    if problems or build is None:
        raise UsageError(problems)
    chosen = select(loaded.scenarios, options)
    if not chosen:
        raise UsageError(["the files hold no scenario"], ExitCode.NOTHING_RAN)
    planned = plan(chosen, world, options, num_gpus=num_gpus() * world.num_nodes)
    on_gpu = any(item.device == "cuda" for item in planned)
    isolation: Isolation = options.isolation or ("group" if on_gpu else "scenario")
    problems = jobs_problems(planned, world, options, isolation)
    if problems:
        raise UsageError(problems)
    return Preflight(
        options=options,
        planned=planned,
        build=build,
        isolation=isolation,
        supervision=options.supervision or ("worker" if on_gpu else "node"),
        warnings=found if loaded.ok else (),
    )


def _node_problems(world: World, isolation: Isolation | None) -> list[str]:
    if world.num_nodes == 1 or isolation != "none":
        return []
    return [
        f"--isolation none: expected a run on one node, found {world.num_nodes}; use --nnodes 1, "
        "or another isolation"
    ]


def _check_resume(world: World, options: Options, folder: Path) -> Preflight:
    plan = plan_to_resume(world, folder)
    asked = resumed_options(plan, options)
    problems = jobs_problems(plan.scenarios, world, asked, plan.isolation)
    problems += _node_problems(world, plan.isolation)
    build = None
    try:
        build = find_build(asked.megatron)
    except BuildError as error:
        problems.append(str(error))
    if problems or build is None:
        raise UsageError(problems)
    before = read_environment(folder)
    moved = differences(before, collect(build)) if before is not None else ()
    return Preflight(
        options=asked,
        planned=plan.scenarios,
        build=build,
        isolation=plan.isolation,
        supervision=plan.supervision,
        warnings=tuple(moved),
        done=frozenset(i.scenario.id for i in plan.scenarios if not attempts_due_of(folder, i)),
    )
