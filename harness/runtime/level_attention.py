"""Level ``attention`` on one rank: DSAttention over real groups, forward and backward."""

from __future__ import annotations

from typing import Any

import torch

from harness.evidence.training import TrainedCall, training_values
from harness.kernels.wrapping import unwrap
from harness.layout import local_runs
from harness.production.attention import (
    attention_inputs,
    build_attention,
    run_attention,
    up_v_weight,
)
from harness.production.backend import as_production
from harness.production.config import transformer_config
from harness.production.groups import Groups, gather_rows, model_parallel
from harness.production.packs import to_packed_order
from harness.record.result import Phase
from harness.runtime.cases import Case, begin, cases, conclude_case, kernels, site_of
from harness.runtime.engine import Stage


def run_attention_level(stage: Stage) -> None:
    """Run every case through one DSAttention module."""
    scenario = stage.task.scenario
    config = transformer_config(scenario, modelled=stage.source.modelled)
    with model_parallel(scenario.parallel) as groups:
        attention = build_attention(scenario, config, groups, stage.provider)
        up_v = up_v_weight(scenario.model, scenario.values.dtype)
        for case in cases(scenario):
            begin(stage, case, groups.cp_rank)
            inputs = _batched_inputs(stage, case, groups)
            if scenario.training.backward:
                _train(stage, case, groups, attention, inputs, up_v)
            else:
                with kernels(stage, case), torch.no_grad():
                    run_attention(attention, inputs, up_v, case.pack if case.packed else None)
                stage.journal.phase(Phase.COMPARE)
            keys = _gathered_keys(stage, case, groups)
            conclude_case(stage, case, groups.cp_rank, {1: keys})


def _train(
    stage: Stage,
    case: Case,
    groups: Groups,
    attention: Any,
    inputs: dict[str, torch.Tensor],
    up_v: torch.Tensor,
) -> None:
    """Forward and backward of one case, and its values against the reference."""
    attention.train()
    attention.zero_grad(set_to_none=True)
    for name in ("query", "key"):
        inputs[name].requires_grad_(True)
    with kernels(stage, case):
        output = run_attention(attention, inputs, up_v, case.pack if case.packed else None)
        upstream = _upstream(stage, case, groups, output)
        indexer = stage.recorder.of("indexer")[-1].result
        for tensor in indexer:
            if tensor.requires_grad:
                tensor.retain_grad()
        stage.journal.phase(Phase.BACKWARD)
        output.backward(upstream)
    stage.journal.phase(Phase.COMPARE)
    call = TrainedCall(
        query=inputs["query"],
        key=inputs["key"],
        indexer=indexer,
        output=output,
        upstream=upstream,
        up_v=up_v,
    )
    site = site_of(stage, case, groups.cp_rank)
    for record in training_values(
        stage.recorder, call, stage.task.scenario, case.pack, groups, site
    ):
        stage.journal.evidence(record)


def _upstream(stage: Stage, case: Case, groups: Groups, output: torch.Tensor) -> torch.Tensor:
    """Seeded gradient of the output; a token's is the same at every CP size."""
    runs = local_runs(case.pack, groups.cp_rank)
    width = output.size(-1)
    parts = [source.rows("upstream", (1, width), runs) for source in case.sources]
    return as_production(torch.cat(parts, dim=1), stage.source)


def _batched_inputs(stage: Stage, case: Case, groups: Groups) -> dict[str, torch.Tensor]:
    model = stage.task.scenario.model
    streams = [
        attention_inputs(model, source, case.pack, groups.cp_rank) for source in case.sources
    ]
    batched = {name: torch.cat([s[name] for s in streams], dim=1) for name in streams[0]}
    return {name: as_production(tensor, stage.source) for name, tensor in batched.items()}


def _gathered_keys(stage: Stage, case: Case, groups: Groups) -> torch.Tensor:
    """All indexer keys ``[batch, keys, dim]`` in packed order, gathered by the harness itself."""
    _q, local, _weights = stage.recorder.of("indexer")[-1].result
    gathered = torch.cat(gather_rows(unwrap(local), groups), dim=0)
    return to_packed_order(gathered, case.pack).transpose(0, 1)
