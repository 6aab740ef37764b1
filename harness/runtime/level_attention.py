"""Level ``attention`` on one rank: DSAttention over real groups, forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from harness.evidence.case_values import CaseValues, indexer_share
from harness.evidence.groups import watch_groups
from harness.evidence.indexer_parameters import parameter_names
from harness.evidence.logged import logged_value
from harness.evidence.observation import observe_scorer
from harness.evidence.replay import replay_evidence
from harness.evidence.trained_call import TrainedCall, grad_or_zero
from harness.evidence.training import training_values
from harness.kernels.wrapping import unwrap
from harness.production.attention import build_attention, up_v_weight
from harness.production.backend import as_production
from harness.production.caller import StandInLayer, layer_sets_group
from harness.production.config import transformer_config
from harness.production.groups import (
    Groups,
    GroupStore,
    gather_rows,
    group_store,
    sum_over_ranks,
)
from harness.production.indexer_log import logged_loss, logs_loss
from harness.production.packs import to_packed_order
from harness.production.recorder import Dresser
from harness.record.evidence import Evidence
from harness.record.groups import INTERRUPTED
from harness.record.phase import Phase
from harness.record.replay import MICROBATCH, STEP, ReplayEvidence
from harness.runtime.attention_run import AttentionRun
from harness.runtime.attention_steps import (
    Held,
    hold,
    hold_again,
    keep_gradients,
    run_backward,
    run_forward,
    run_whole,
    taken_up,
    trained_call,
)
from harness.runtime.cases import Case, cases, conclude_case, site_of
from harness.runtime.engine import Stage
from harness.runtime.group_records import LAYER, failed_case, group_records
from harness.runtime.launches import Launch, further_evidence
from harness.runtime.twins import Role, run_with_twins
from harness.scenario.parts import own_scenario, part_of
from harness.scenario.rules.finding import effective_cp


def run_attention_level(stage: Stage) -> None:
    """Run every case through one DSAttention module, and again where the scenario compares."""
    own = own_scenario(stage.task.scenario, stage.task.global_rank)
    stage = replace(stage, task=replace(stage.task, scenario=own))
    run_with_twins(stage, run_attention_cases)


def run_attention_cases(
    stage: Stage, groups: Groups, role: Role
) -> Iterator[tuple[Case, CaseValues]]:
    """Run the cases in order; see ``harness.runtime.twins.Runner``."""
    scenario, task = stage.task.scenario, stage.task
    run = _build(stage, groups, role)
    if role.main:
        stage.watched.module, stage.watched.config = run.attention, run.attention.config
    keep_gradients(stage.recorder)
    watch_groups(stage.recorder)
    # What backward computes again is given plain tensors by Megatron's checkpointing.
    stage.recorder.dressers["attention"] = _dresser(stage)
    found = list(cases(scenario, lambda spec: part_of(scenario, spec, task.global_rank)[0]))
    for seed in scenario.values.seeds:
        yield from _in_order(run, [case for case in found if case.seed == seed])


def _dresser(stage: Stage) -> Dresser:
    """Have production branches run with modelled kernels, whoever calls attention."""

    def dress(name: str, value: Any) -> Any:
        is_input = name in ("query", "key", "x", "qr") and isinstance(value, torch.Tensor)
        return as_production(value, stage.source) if is_input else value

    return dress


def _build(stage: Stage, groups: Groups, role: Role) -> AttentionRun:
    """Construct DSAttention, the groups of all microbatches, and its caller where it matters."""
    scenario = stage.task.scenario
    config = transformer_config(scenario, modelled=stage.source.modelled)
    dynamic = scenario.parallel.dynamic_context_parallel
    recomputes = scenario.training.recompute != "none"
    sizes = [effective_cp(scenario, spec) for spec in scenario.microbatches] if dynamic else []
    attention = build_attention(scenario, config, groups, stage.provider)
    by_layer = dynamic and layer_sets_group(stage.facts, scenario.overlays)
    return AttentionRun(
        stage=stage,
        store=group_store(groups, sizes) if sizes else GroupStore(configured=groups, by_size={}),
        role=role,
        attention=attention,
        layer=StandInLayer(attention, config) if dynamic or recomputes else None,
        up_v=up_v_weight(scenario.model, scenario.values.dtype, groups),
        set_by="layer" if by_layer else "harness" if dynamic else "nobody",
    )


def _in_order(run: AttentionRun, found: list[Case]) -> Iterator[tuple[Case, CaseValues]]:
    """Run the microbatches of one seed: each alone, or step by step as the schedule says."""
    schedule = run.stage.task.scenario.schedule
    if schedule is None:
        for case in found:
            with failed_case(run) as begun:
                held = hold(run, case)
                begun.append(held)
                run_whole(run, held)
                yield case, _conclude(run, held)
        return
    waiting: dict[int, Held] = {}
    for step in schedule:
        case = found[int(step[1:])]
        with failed_case(run) as begun:
            if step[0] == "F":
                held = hold(run, case)
                begun.append(held)
                run_forward(run, held)
                if run.trains(case):
                    waiting[case.index] = held
                    continue
            else:
                held = waiting.pop(case.index)
                begun.append(held)
            with taken_up(run, held):
                if run.trains(case):
                    run_backward(run, held)
                values = _conclude(run, held)
        yield case, values


def _conclude(run: AttentionRun, held: Held) -> CaseValues:
    """Collect what a microbatch shows whose steps have all run."""
    stage, groups, role, case = run.stage, held.groups, run.role, held.case
    values = CaseValues()
    stage.journal.phase(Phase.COMPARE)
    if run.trains(case):
        _judge(run, held, values)
    elif role.kept:
        assert held.output is not None
        values.rows[LAYER, "attention_output"] = unwrap(held.output)
    observation = observe_scorer(stage.recorder, LAYER)
    keys = _gathered_keys(stage, case, groups)
    if role.kept and observation is not None:
        values.add_selection(LAYER, observation, keys)
    if role.main:
        conclude_case(stage, case, groups.cp_rank, {LAYER: keys})
        launch = Launch(
            cp_rank=groups.cp_rank,
            module=run.attention,
            inputs={**held.inputs, "up_v": run.up_v},
            forward=partial(_forward_again, run),
            rows=dict.fromkeys(held.inputs, 0),
            trained=partial(_train_again, run) if run.trains(case) else None,
            interrupted=partial(_look_behind_exception, run, held),
        )
        with run.group_set(groups) if run.set_by == "nobody" else contextlib.nullcontext():
            further_evidence(stage, case, launch)
        further: list[Evidence] = [*group_records(run, held), *_replays(run, held)]
        for record in further:
            stage.journal.evidence(record)
    return values


def _replays(run: AttentionRun, held: Held) -> Iterator[ReplayEvidence]:
    scenario = run.stage.task.scenario
    if not run.trains(held.case) or scenario.training.recompute == "none":
        return
    assert held.replays is not None
    yield from replay_evidence(
        held.replays,
        run.stage.recorder,
        scope=MICROBATCH if scenario.schedule is None else STEP,
        scenario=scenario,
        pack=held.case.pack,
        site=site_of(run.stage, held.case, held.groups.cp_rank),
    )


def _forward_again(
    run: AttentionRun, case: Case, inputs: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    given = dict(inputs)
    up_v = given.pop("up_v")
    with run.group_set(run.groups_of(case)):
        return run.attend(case, given, up_v)


def _train_again(run: AttentionRun, case: Case) -> dict[str, torch.Tensor]:
    held = hold_again(run, case)
    run_whole(run, held)
    call = trained_call(run, held)
    return {**call.of_rows(), **call.of_keys()}


def _look_behind_exception(run: AttentionRun, held: Held) -> None:
    """Note the groups that are held, and have the history go on as if they had been put back."""
    held.look(run, INTERRUPTED)
    configured = run.store.configured
    configured.collection.cp = configured.configured_cp


def _judge(run: AttentionRun, held: Held, values: CaseValues) -> None:
    """Hold the values of a trained microbatch against the reference."""
    stage, scenario = run.stage, run.stage.task.scenario
    groups, case = held.groups, held.case
    call, recorder = trained_call(run, held), held.trained(stage.recorder)
    logged = logged_loss(groups)
    site = site_of(stage, case, groups.cp_rank)
    observation = observe_scorer(recorder, LAYER)
    if run.role.judged and observation is not None:
        judged = training_values(
            call,
            observation,
            recorder=recorder,
            scenario=scenario,
            pack=case.pack,
            groups=groups,
            site=site,
        )
        losses = {} if judged.loss is None else {LAYER: judged.loss}
        records = [*judged.records]
        if not (case.spec.beside and run.store.configured.dp_size > 1):
            # Else Megatron logs the mean over replicas, each of which had a pack of its own.
            records.append(logged_value(logged, losses, scenario, site))
        for record in records:
            stage.journal.evidence(run.role.named(record))
        if run.role.kept:
            share = indexer_share(scenario, groups)
            for name in parameter_names(call):
                values.add_scale((LAYER, name), judged.due[name], groups, share)
    if run.role.kept:
        _keep(run, groups, values, call, logged)


def _keep(
    run: AttentionRun, groups: Groups, values: CaseValues, call: TrainedCall, logged: torch.Tensor
) -> None:
    scenario = run.stage.task.scenario
    share = indexer_share(scenario, groups)
    names = ("grad.q_indexer", "grad.k_indexer", "grad.weights")
    values.add_call(LAYER, call, groups, share=dict.fromkeys(names, share))
    values.reduced[LAYER, "grad.up_v"] = sum_over_ranks(grad_or_zero(call.up_v), groups)
    for name, parameter in parameter_names(call).items():
        values.add_parameter((LAYER, name), parameter, groups, share)
    if logs_loss(scenario):
        values.reduced[LAYER, "logged_loss"] = logged.double()


def _gathered_keys(stage: Stage, case: Case, groups: Groups) -> torch.Tensor:
    """All indexer keys ``[batch, keys, dim]`` in packed order, gathered by the harness itself."""
    _q, local, _weights = stage.recorder.of("indexer")[-1].result
    gathered = torch.cat(gather_rows(unwrap(local), groups), dim=0)
    return to_packed_order(gathered, case.pack).transpose(0, 1)
