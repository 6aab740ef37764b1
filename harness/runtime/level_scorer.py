"""Level ``scorer`` on one rank: its share of the logical context-parallel ranks, one by one."""

from __future__ import annotations

from dataclasses import replace

from harness.production.backend import as_production
from harness.production.config import transformer_config
from harness.production.scorer import run_scorer, scorer_inputs
from harness.runtime.cases import begin, cases, conclude_case, kernels
from harness.runtime.engine import Stage


def run_scorer_level(stage: Stage) -> None:
    """Run every case on each of this rank's logical ranks; no collectives are involved."""
    scenario, source = stage.task.scenario, stage.source
    config = transformer_config(scenario, modelled=source.modelled)
    for case in cases(scenario):
        for cp_rank in stage.task.cp_ranks:
            begin(stage, case, cp_rank)
            inputs = scorer_inputs(scenario.model, case.sources, case.pack, cp_rank)
            seen = replace(
                inputs,
                q=as_production(inputs.q, source),
                k=as_production(inputs.k, source),
                weights=as_production(inputs.weights, source),
            )
            with kernels(stage, case):
                run_scorer(
                    config,
                    seen,
                    case.pack,
                    cp_rank,
                    packed=case.packed,
                    explicit_key_positions=case.spec.key_positions == "explicit",
                )
            conclude_case(stage, case, cp_rank, {1: inputs.k.transpose(0, 1)})
