"""Everything that is checked before a run writes its first byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.production.locate import BuildError, MegatronBuild, find_build
from harness.record.verdict import ExitCode
from harness.runtime.devices import num_gpus
from harness.runtime.options import Isolation, Options, Supervision, UsageError
from harness.runtime.plan import Planned, plan, select
from harness.runtime.run_folder import RunFolderError, check_writable
from harness.runtime.world import World


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """A run that can start.

    Attributes:
        isolation: As asked for, else by device.
        supervision: Who starts rank processes, as asked for, else by device.
        warnings: What the loader thinks is odd but usable.
    """

    planned: tuple[Planned, ...]
    build: MegatronBuild
    isolation: Isolation
    supervision: Supervision
    warnings: tuple[str, ...] = ()


def check(world: World, options: Options) -> Preflight:
    """Check scenarios, selection, ranks, Megatron build and output folder, and write nothing.

    Raises:
        UsageError: with one line for every problem found, so that one round of repairs is enough.
    """
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
    if world.num_nodes > 1:
        problems.append(
            f"this run has {world.world_size} ranks on {world.num_nodes} nodes; the ranks of a run "
            "have to be on one node so far: use --nnodes 1"
        )
    if problems or build is None:
        raise UsageError(problems)
    chosen = select(loaded.scenarios, options)
    if not chosen:
        raise UsageError(["the files hold no scenario"], ExitCode.NOTHING_RAN)
    planned = plan(chosen, world, options, num_gpus=num_gpus())
    on_gpu = any(item.device == "cuda" for item in planned)
    return Preflight(
        planned=planned,
        build=build,
        isolation=options.isolation or ("group" if on_gpu else "scenario"),
        supervision=options.supervision or ("worker" if on_gpu else "node"),
        warnings=found if loaded.ok else (),
    )
