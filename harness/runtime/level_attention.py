"""Level ``attention`` on one rank: DSAttention over real groups, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from harness.evidence.case_values import CaseValues, indexer_share
from harness.evidence.indexer_parameters import parameter_names
from harness.evidence.logged import logged_value
from harness.evidence.observation import observe_scorer
from harness.evidence.trained_call import TrainedCall, grad_or_zero
from harness.evidence.training import training_values
from harness.kernels.wrapping import unwrap
from harness.production.attention import (
    attention_inputs,
    build_attention,
    output_gradient,
    run_attention,
    up_v_weight,
)
from harness.production.backend import as_production
from harness.production.config import transformer_config
from harness.production.groups import Groups, entered, gather_rows, sum_over_ranks
from harness.production.indexer_log import clear_log, logged_loss, logs_loss
from harness.production.packs import to_packed_order
from harness.record.result import Phase
from harness.runtime.cases import Case, begin, cases, conclude_case, kernels, mask_of, site_of
from harness.runtime.engine import Stage
from harness.runtime.launches import Launch, further_evidence
from harness.runtime.twins import Role, run_with_twins

LAYER = 1
"""The one layer that this level builds."""


def run_attention_level(stage: Stage) -> None:
    """Run every case through one DSAttention module, and again where the scenario compares."""
    run_with_twins(stage, run_attention_cases)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Run:
    """What all cases of a run share."""

    stage: Stage
    groups: Groups
    role: Role
    attention: Any
    up_v: torch.Tensor

    @property
    def trains(self) -> bool:
        """Whether backward runs."""
        return self.stage.task.scenario.training.backward


def run_attention_cases(
    stage: Stage, groups: Groups, role: Role
) -> Iterator[tuple[Case, CaseValues]]:
    """Run the cases in order; see ``harness.runtime.twins.Runner``."""
    scenario = stage.task.scenario
    config = transformer_config(scenario, modelled=stage.source.modelled)
    run = _Run(
        stage=stage,
        groups=groups,
        role=role,
        attention=build_attention(scenario, config, groups, stage.provider),
        up_v=up_v_weight(scenario.model, scenario.values.dtype, groups),
    )
    if role.main:
        stage.watched.module, stage.watched.config = run.attention, config
    for case in cases(scenario):
        with entered(groups):
            values = _run_case(run, case)
        yield case, values


def _run_case(run: _Run, case: Case) -> CaseValues:
    """Run one case and collect what it shows."""
    stage, groups, role = run.stage, run.groups, run.role
    begin(stage, case, groups.cp_rank, planted=role.planted)
    values, inputs = CaseValues(), _inputs(run, case)
    if run.trains:
        _train(run, case, inputs, values)
    else:
        _forward(run, case, inputs, values)
    observation = observe_scorer(stage.recorder, LAYER)
    keys = _gathered_keys(stage, case, groups)
    if role.kept and observation is not None:
        values.add_selection(LAYER, observation, keys)
    if role.main:
        conclude_case(stage, case, groups.cp_rank, {LAYER: keys})
        launch = Launch(
            cp_rank=groups.cp_rank,
            module=run.attention,
            inputs={**inputs, "up_v": run.up_v},
            forward=partial(_forward_again, run),
            rows=dict.fromkeys(inputs, 0),
            trained=partial(_train_again, run) if run.trains else None,
        )
        further_evidence(stage, case, launch)
    return values


def _forward_again(run: _Run, case: Case, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    given = dict(inputs)
    up_v = given.pop("up_v")
    return _attend(run, case, given, up_v)


def _train_again(run: _Run, case: Case) -> dict[str, torch.Tensor]:
    call = _trained(run, case, _inputs(run, case))
    return {**call.of_rows(), **call.of_keys()}


def _forward(run: _Run, case: Case, inputs: dict[str, torch.Tensor], values: CaseValues) -> None:
    with kernels(run.stage, case), torch.no_grad():
        output = _attend(run, case, inputs, run.up_v)
    run.stage.journal.phase(Phase.COMPARE)
    if run.role.kept:
        values.rows[LAYER, "attention_output"] = unwrap(output)


def _train(run: _Run, case: Case, inputs: dict[str, torch.Tensor], values: CaseValues) -> None:
    """Forward and backward of one case, and its values against the reference."""
    stage, scenario = run.stage, run.stage.task.scenario
    clear_log()
    call = _trained(run, case, inputs)
    stage.journal.phase(Phase.COMPARE)
    logged = logged_loss(run.groups)
    site = site_of(stage, case, run.groups.cp_rank)
    observation = observe_scorer(stage.recorder, LAYER)
    if run.role.judged and observation is not None:
        judged = training_values(
            call,
            observation,
            recorder=stage.recorder,
            scenario=scenario,
            pack=case.pack,
            groups=run.groups,
            site=site,
        )
        losses = {} if judged.loss is None else {LAYER: judged.loss}
        for record in (*judged.records, logged_value(logged, losses, scenario, site)):
            stage.journal.evidence(run.role.named(record))
        if run.role.kept:
            share = indexer_share(scenario, run.groups)
            for name in parameter_names(call):
                values.add_scale((LAYER, name), judged.due[name], run.groups, share)
    if run.role.kept:
        _keep(run, values, call, logged)


def _trained(run: _Run, case: Case, inputs: dict[str, torch.Tensor]) -> TrainedCall:
    run.attention.train()
    run.attention.zero_grad(set_to_none=True)
    for tensor in inputs.values():
        tensor.requires_grad_(True)
    up_v = run.up_v.detach().clone().requires_grad_(True)
    with kernels(run.stage, case):
        output = _attend(run, case, inputs, up_v)
        upstream = _upstream(run, case)
        indexer = run.stage.recorder.of("indexer")[-1].result
        for tensor in indexer:
            if tensor.requires_grad:
                tensor.retain_grad()
        run.stage.journal.phase(Phase.BACKWARD)
        output.backward(upstream)
    return TrainedCall(
        query=inputs["query"],
        key=inputs["key"],
        indexer=indexer,
        output=output,
        upstream=upstream,
        up_v=up_v,
        hidden=inputs["x"],
        low_rank=inputs["qr"],
        parameters=dict(run.attention.indexer.named_parameters()),
    )


def _keep(run: _Run, values: CaseValues, call: TrainedCall, logged: torch.Tensor) -> None:
    scenario, groups = run.stage.task.scenario, run.groups
    share = indexer_share(scenario, groups)
    names = ("grad.q_indexer", "grad.k_indexer", "grad.weights")
    values.add_call(LAYER, call, groups, share=dict.fromkeys(names, share))
    values.reduced[LAYER, "grad.up_v"] = sum_over_ranks(grad_or_zero(call.up_v), groups)
    for name, parameter in parameter_names(call).items():
        values.add_parameter((LAYER, name), parameter, groups, share)
    if logs_loss(scenario):
        values.reduced[LAYER, "logged_loss"] = logged.double()


def _attend(
    run: _Run, case: Case, inputs: dict[str, torch.Tensor], up_v: torch.Tensor
) -> torch.Tensor:
    pack = case.pack if case.packed else None
    mask = mask_of(case, run.groups.cp_rank)
    return run_attention(run.attention, inputs, up_v, pack, real_token_mask=mask)


def _upstream(run: _Run, case: Case) -> torch.Tensor:
    """Seeded gradient of the output; a token's is the same at every CP size."""
    model = run.stage.task.scenario.model
    parts = [output_gradient(model, source, case.pack, run.groups) for source in case.sources]
    return as_production(torch.cat(parts, dim=1), run.stage.source)


def _inputs(run: _Run, case: Case) -> dict[str, torch.Tensor]:
    scenario, source = run.stage.task.scenario, run.stage.source
    streams = [attention_inputs(scenario, s, case.pack, run.groups) for s in case.sources]
    batched = {name: torch.cat([s[name] for s in streams], dim=1) for name in streams[0]}
    return {name: as_production(tensor, source) for name, tensor in batched.items()}


def _gathered_keys(stage: Stage, case: Case, groups: Groups) -> torch.Tensor:
    """All indexer keys ``[batch, keys, dim]`` in packed order, gathered by the harness itself."""
    _q, local, _weights = stage.recorder.of("indexer")[-1].result
    gathered = torch.cat(gather_rows(unwrap(local), groups), dim=0)
    return to_packed_order(gathered, case.pack).transpose(0, 1)
