"""Runs a scenario again in the same processes: at other CP sizes, or in fp32.

A twin has the same identity of tokens, weights and seeds. At another CP size its sequences keep
the padded lengths of the first run, so that packed positions are the same, and each rank holds its
own rows against the twin's. In fp32 it is judged against the reference by the bounds of fp32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch.distributed as dist

from harness.evidence.across import compare_across
from harness.evidence.case_values import CaseValues, in_packed_order
from harness.production.dynamic_cp import group_arguments
from harness.production.groups import Groups, effective_groups, model_parallel
from harness.production.indexer_log import clear_log, log_nothing, logged_loss
from harness.production.perturb import Perturbation
from harness.record.evidence import ValueEvidence
from harness.record.phase import Phase
from harness.runtime.cases import Case, cases, site_of
from harness.runtime.engine import Stage
from harness.scenario.rules.finding import effective_cp
from harness.scenario.rules.lengths import build_pack
from harness.scenario.spec import CompareSpec, Scenario


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """What a run of the cases is for.

    Attributes:
        prefix: Stands before the names of judged values.
        main: The run that the scenario is about: all evidence is collected.
        judged: Values are held against the reference.
        planted: Faults to plant are planted.
        kept: Values are wanted afterwards.
    """

    prefix: str = ""
    main: bool = False
    judged: bool = False
    planted: bool = False
    kept: bool = False

    def named(self, record: ValueEvidence) -> ValueEvidence:
        """Return a record under this run's name for it."""
        return replace(record, name=f"{self.prefix}{record.name}") if self.prefix else record


Runner = Callable[[Stage, Groups, Role], Iterator[tuple[Case, CaseValues]]]
"""Runs the cases of the stage's scenario in order and yields each with its values."""


def run_with_twins(stage: Stage, run_cases: Runner) -> None:
    """Run the scenario, then again for every comparison it asks for."""
    scenario = stage.task.scenario
    sizes = scenario.compare.context_parallel_size
    effective = scenario.compare.effective_cp
    role = Role(main=True, judged=True, planted=True, kept=bool(sizes or effective))
    kept: list[tuple[Case, CaseValues]] = []
    with model_parallel(scenario.parallel, _own_groups(scenario)) as groups:
        stage.journal.group = groups.collection.cp
        for case, values in run_cases(stage, groups, role):
            if role.kept:
                kept.append((case, values))
        for size in effective:
            _run_on_parts(stage, size, kept, groups, run_cases)
    for size in sizes:
        _run_at_size(stage, size, kept, groups, run_cases)
    if scenario.compare.dtype is not None:
        again = replace(scenario.values, dtype=scenario.compare.dtype)
        twin = replace(scenario, values=again, compare=CompareSpec())
        role = Role(prefix=f"{scenario.compare.dtype}.", judged=True, planted=True)
        with model_parallel(twin.parallel, _own_groups(twin)) as groups:
            for _ in run_cases(_staged(stage, twin), groups, role):
                pass


def _own_groups(scenario: Scenario) -> dict[str, bool]:
    """At level ``model`` the build makes the groups of Dynamic CP itself."""
    asked = scenario.level == "model" and scenario.parallel.dynamic_context_parallel
    return group_arguments() if asked else {}


def twin_at_size(scenario: Scenario, size: int) -> Scenario:
    """Return the scenario at another CP size, its sequences padded as they are now."""
    return replace(
        _padded_as_now(scenario),
        parallel=replace(scenario.parallel, context_parallel_size=size),
        compare=CompareSpec(),
    )


def twin_on_parts(scenario: Scenario, size: int) -> Scenario:
    """Return the scenario with an effective CP size of its own for every microbatch."""
    pinned = _padded_as_now(scenario)
    microbatches = tuple(replace(microbatch, cp=size) for microbatch in pinned.microbatches)
    return replace(pinned, microbatches=microbatches, compare=CompareSpec())


def _padded_as_now(scenario: Scenario) -> Scenario:
    microbatches = []
    for microbatch in scenario.microbatches:
        if microbatch.qkv_format == "thd":
            pack = build_pack(microbatch, effective_cp(scenario, microbatch))
            given = microbatch.kv_sequences is not None
            microbatch = replace(
                microbatch, padded=pack.q_padded, kv_padded=pack.k_padded if given else "auto"
            )
        microbatches.append(microbatch)
    return replace(scenario, microbatches=tuple(microbatches))


def _staged(stage: Stage, scenario: Scenario) -> Stage:
    return replace(stage, task=replace(stage.task, scenario=scenario))


def _run_at_size(
    stage: Stage,
    size: int,
    kept: list[tuple[Case, CaseValues]],
    first: Groups,
    run_cases: Runner,
) -> None:
    """Run the twin on the first data-parallel replica of its size; all ranks compare with it."""
    twin = _staged(stage, twin_at_size(stage.task.scenario, size))
    # What is broken on purpose is broken in the first run alone, so that the two differ.
    twin = replace(twin, perturbation=Perturbation())
    with model_parallel(twin.task.scenario.parallel) as groups:
        share = _same_shard_group(first.tp_size)
        run = run_cases if groups.dp_rank == 0 else _idle_cases
        found = run(twin, groups, Role(kept=True))
        for (case, values), (same, others) in zip(kept, found, strict=True):
            packed = in_packed_order(others, same.pack, groups) if groups.dp_rank == 0 else others
            box = [packed]
            dist.broadcast_object_list(box, src=first.tp_rank, group=share)
            stage.journal.phase(Phase.COMPARE)
            site = site_of(stage, case, first.cp_rank)
            for record in compare_across(
                f"cp{size}.",
                values,
                box[0],
                scenario=stage.task.scenario,
                pack=case.pack,
                site=site,
                group=share,
            ):
                stage.journal.evidence(record)


def _run_on_parts(
    stage: Stage,
    size: int,
    kept: list[tuple[Case, CaseValues]],
    first: Groups,
    run_cases: Runner,
) -> None:
    """Run the twin on parts of the group, all of them at once; all ranks compare with the first."""
    twin = _staged(stage, twin_on_parts(stage.task.scenario, size))
    twin = replace(twin, perturbation=Perturbation())
    groups = effective_groups(first, size)
    found = run_cases(twin, groups, Role(kept=True))
    for (case, values), (same, others) in zip(kept, found, strict=True):
        box = [in_packed_order(others, same.pack, groups)]
        dist.broadcast_object_list(box, src=0, group=first.harness_cp)
        stage.journal.phase(Phase.COMPARE)
        for record in compare_across(
            f"effective{size}.",
            values,
            box[0],
            scenario=stage.task.scenario,
            pack=case.pack,
            site=site_of(stage, case, first.cp_rank),
            group=first.harness_cp,
        ):
            stage.journal.evidence(record)


def _same_shard_group(tp_size: int) -> Any:
    """Create a harness group of all ranks with the same tensor-parallel shard as this one.

    Tensor-parallel ranks are neighbours at every CP size, and the first of each shard runs twins.
    """
    own = None
    for shard in range(tp_size):
        ranks = list(range(shard, dist.get_world_size(), tp_size))
        group = dist.new_group(ranks, backend="gloo", group_desc="HARNESS_TWIN")
        if dist.get_rank() in ranks:
            own = group
    return own


def _idle_cases(stage: Stage, groups: Groups, _role: Role) -> Iterator[tuple[Case, CaseValues]]:
    """Stand beside a twin that other ranks run, and join the reduction of what is logged."""
    scenario = stage.task.scenario
    num_layers = scenario.model.num_layers if scenario.level == "model" else 1
    for case in cases(scenario):
        clear_log()
        log_nothing(scenario, groups, num_layers)
        logged_loss(groups)
        yield case, CaseValues()
