"""Level ``model`` on one rank: GPT layers, loss and backward, every attention call judged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from harness.evidence.case_values import CaseValues
from harness.evidence.groups import watch_groups
from harness.evidence.indexer_parameters import parameter_names
from harness.evidence.logged import logged_value
from harness.evidence.replay import Replays, unwatch_trained, watch_trained
from harness.evidence.sharing import observe_layer, watch_shared_picks
from harness.evidence.trained_call import TrainedCall, grad_or_zero
from harness.evidence.training import training_values
from harness.kernels.wrapping import unwrap
from harness.production.backend import as_production
from harness.production.config import transformer_config
from harness.production.dynamic_cp import build_groups
from harness.production.groups import (
    Groups,
    GroupStore,
    gather_rows,
    gather_shards,
    group_store,
    sum_over_ranks,
)
from harness.production.indexer_log import clear_log, logged_loss, logs_loss
from harness.production.model import absorbed_linear, build_model, run_model
from harness.production.packs import real_rows, to_packed_order
from harness.record.evidence import NoteEvidence
from harness.record.groups import BACKWARD, FORWARD
from harness.record.phase import Phase
from harness.record.replay import MICROBATCH
from harness.reference.expected import Expected
from harness.runtime.cases import Case, begin, cases, conclude_case, kernels, mask_of, site_of
from harness.runtime.engine import Stage
from harness.runtime.launches import Launch, further_evidence
from harness.runtime.model_groups import Moments
from harness.runtime.model_run import (
    Forward,
    ModelRun,
    forward_loss,
    num_tokens,
    replayed_backward,
    write_replays,
)
from harness.runtime.model_step import Alone, run_step
from harness.runtime.twins import Role, run_with_twins
from harness.scenario.parts import own_scenario, part_of
from harness.scenario.rules.finding import effective_cp

LOSS = "language model loss"
"""Topic of the note that holds a case's mean token loss over the group."""

WHOLE = 0
"""Layer of values that belong to the whole model."""


def run_model_level(stage: Stage) -> None:
    """Run every case through one model, and again where the scenario compares."""
    own = own_scenario(stage.task.scenario, stage.task.global_rank)
    stage = replace(stage, task=replace(stage.task, scenario=own))
    with absorbed_linear(stage.provider_name):
        run_with_twins(stage, run_model_cases)


def run_model_cases(stage: Stage, groups: Groups, role: Role) -> Iterator[tuple[Case, CaseValues]]:
    """Run the cases in order; see ``harness.runtime.twins.Runner``."""
    scenario, task = stage.task.scenario, stage.task
    run = _build(stage, groups, role)
    # Megatron's own autograd functions hand on plain tensors, so they are dressed again here.
    stage.recorder.dressers["attention"] = _as_production(stage)
    watch_shared_picks(stage.recorder)
    watch_groups(stage.recorder)
    if role.main:
        stage.watched.module, stage.watched.config = run.model, run.model.config
    alone: list[Alone] = []
    for case in cases(scenario, lambda spec: part_of(scenario, spec, task.global_rank)[0]):
        here = run.at(case)
        begin(stage, case, here.groups.cp_rank, planted=role.planted)
        values, moments = CaseValues(), Moments(here)
        with moments.kept(case):
            alone.append(_run_case(here, case, values, moments))
        yield case, values
        if case.index == len(scenario.microbatches) - 1:
            if role.judged:
                run_step(run, alone)
            alone = []


def _build(stage: Stage, groups: Groups, role: Role) -> ModelRun:
    """Construct the model, and the groups of all microbatches."""
    scenario = stage.task.scenario
    config = transformer_config(scenario, modelled=stage.source.modelled)
    store = GroupStore(configured=groups, by_size={})
    if scenario.parallel.dynamic_context_parallel:
        sizes = [effective_cp(scenario, microbatch) for microbatch in scenario.microbatches]
        store = build_groups(group_store(groups, sizes))
    model = build_model(scenario, config, stage.provider)
    return ModelRun(stage=stage, store=store, groups=groups, role=role, model=model)


def _as_production(stage: Stage) -> Callable[[str, Any], Any]:
    """Dress what goes into attention so that production branches run with modelled kernels."""

    def dress(name: str, value: Any) -> Any:
        is_input = name in ("query", "key", "x", "qr") and isinstance(value, torch.Tensor)
        return as_production(value, stage.source) if is_input else value

    return dress


def _run_case(run: ModelRun, case: Case, values: CaseValues, moments: Moments) -> Alone:
    """Run one microbatch alone, judge it, and return what a step of several is held against."""
    stage, groups = run.stage, run.groups
    run.model.zero_grad(set_to_none=True)
    clear_log()
    calls = watch_trained(stage.recorder) if run.trains else {}
    forward, replays = _run_whole(run, case, moments)
    unwatch_trained(stage.recorder)
    stage.journal.phase(Phase.COMPARE)
    mean = _mean_loss(run, case, forward)
    keys = _gathered_keys(stage, case, groups)
    dues: dict[str, Expected] = {}
    logged = logged_loss(groups) if run.trains else torch.zeros(())
    if run.trains and run.role.judged:
        dues = _judge_values(run, case, calls, replays, logged, values)
        write_replays(run, case, replays, scope=MICROBATCH)
    if run.role.kept:
        values.reduced[WHOLE, "lm_loss"] = mean
        _keep_rows(run, values, forward)
        _keep(run, values, calls, keys, logged)
    if run.role.main:
        conclude_case(stage, case, groups.cp_rank, keys)
        launch = Launch(
            cp_rank=groups.cp_rank,
            module=run.model,
            inputs=forward.inputs,
            forward=partial(_forward_again, run),
            rows=dict.fromkeys(forward.inputs, 1),
            interrupted=moments.look_behind_exception,
        )
        further_evidence(stage, case, launch)
        moments.write(case, rows=forward.inputs["input_ids"].size(1))
    gradients = {
        name: grad_or_zero(parameter).double()
        for name, parameter in run.model.named_parameters()
        if run.trains
    }
    return Alone(case=case, gradients=gradients, due=dues, logged=logged)


def _run_whole(run: ModelRun, case: Case, moments: Moments) -> tuple[Forward, Replays]:
    """Run forward, and backward where the microbatch trains, with nothing in between."""
    stage = run.stage
    with kernels(stage, case), run.mode():
        forward = forward_loss(run, case)
    moments.look(FORWARD)
    replays = moments.replays = Replays(forward=list(stage.recorder.calls))
    if run.trains:
        # Anew, as in a step, so that what chance decides comes out alike in both.
        with kernels(stage, case):
            stage.journal.phase(Phase.BACKWARD)
            replayed_backward(run, forward.loss, replays)
        moments.look(BACKWARD)
    return forward, replays


def _mean_loss(run: ModelRun, case: Case, forward: Forward) -> torch.Tensor:
    """Mean token loss over the group, which the record keeps."""
    real = real_rows(case.pack, run.groups.cp_rank).to(forward.token_loss.device)
    total = sum_over_ranks((forward.token_loss.detach().double() * real).sum(), run.groups)
    mean = total / num_tokens(case)
    if run.role.main:
        text = f"{case.index}: {float(mean):.6f}"
        run.stage.journal.evidence(NoteEvidence(topic=LOSS, text=text))
    return mean


def _keep_rows(run: ModelRun, values: CaseValues, forward: Forward) -> None:
    values.rows[WHOLE, "token_loss"] = forward.token_loss.detach().transpose(0, 1)
    if not run.trains:
        return
    hidden = grad_or_zero(forward.embedded)
    if run.stage.task.scenario.parallel.sequence_parallel:
        hidden = gather_shards(hidden, run.groups, dim=0)
    values.rows[WHOLE, "grad.hidden_states"] = hidden * run.share


def _forward_again(run: ModelRun, case: Case, inputs: Mapping[str, torch.Tensor]) -> Any:
    mask = mask_of(case, run.groups.cp_rank)
    return run_model(
        run.model,
        dict(inputs),
        case.pack if case.packed else None,
        real_token_mask=mask,
        given_group=run.given_group,
    )


def _judge_values(
    run: ModelRun,
    case: Case,
    calls: dict[int, TrainedCall],
    replays: Replays,
    logged: torch.Tensor,
    values: CaseValues,
) -> dict[str, Expected]:
    """Judge each layer's call; return the references of the indexers' parameters by full name."""
    stage, scenario = run.stage, run.stage.task.scenario
    recorder = replays.trained(stage.recorder)
    losses, dues = {}, {}
    site = site_of(stage, case, run.groups.cp_rank)
    for layer, call in calls.items():
        source = scenario.model.source_layer(layer)
        observation = observe_layer(recorder, layer, source)
        if observation is None:
            continue
        judged = training_values(
            call,
            observation,
            recorder=recorder,
            scenario=scenario,
            pack=case.pack,
            groups=run.groups,
            site=site_of(stage, case, run.groups.cp_rank, layer=layer),
        )
        if judged.loss is not None:
            losses[layer] = judged.loss
        for record in judged.records:
            stage.journal.evidence(run.role.named(record))
        for name in parameter_names(call):
            dues[run.parameter_name(call, layer, name)] = judged.due[name]
            if run.role.kept:
                values.add_scale(
                    (WHOLE, run.parameter_name(call, layer, name)),
                    judged.due[name],
                    run.groups,
                    run.share,
                )
    if run.logs_own(case):
        stage.journal.evidence(run.role.named(logged_value(logged, losses, scenario, site)))
    return dues


def _keep(
    run: ModelRun,
    values: CaseValues,
    calls: dict[int, TrainedCall],
    keys: dict[int, torch.Tensor],
    logged: torch.Tensor,
) -> None:
    stage, scenario, groups = run.stage, run.stage.task.scenario, run.groups
    for layer in range(1, scenario.model.num_layers + 1):
        source = scenario.model.source_layer(layer)
        observation = observe_layer(stage.recorder, layer, source)
        if observation is not None:
            values.add_selection(layer, observation, keys.get(layer))
    if not run.trains:
        return
    for layer, call in calls.items():
        names = [name for name in (*call.of_rows(), *call.of_keys()) if name.startswith("grad.")]
        values.add_call(layer, call, groups, share=dict.fromkeys(names, run.share))
    for name, parameter in run.model.named_parameters():
        values.add_parameter((WHOLE, f"grad.param.{name}"), parameter, groups, run.share)
    if logs_loss(scenario):
        values.reduced[WHOLE, "logged_loss"] = logged.double()


def _gathered_keys(stage: Stage, case: Case, groups: Groups) -> dict[int, torch.Tensor]:
    """Indexer keys ``[batch, keys, dim]`` of each layer in packed order."""
    keys = {}
    for call in stage.recorder.of("indexer"):
        _q, local, _weights = call.result
        gathered = torch.cat(gather_rows(unwrap(local), groups), dim=0)
        keys[call.layer] = to_packed_order(gathered, case.pack).transpose(0, 1)
    return keys
