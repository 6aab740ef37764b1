"""Level ``scorer`` on one rank: its share of the logical context-parallel ranks, one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from harness.production.backend import as_production
from harness.production.config import transformer_config
from harness.production.inputs import as_given
from harness.production.scorer import ScorerInputs, run_scorer, scorer_inputs
from harness.runtime.cases import Case, begin, cases, conclude_case, kernels
from harness.runtime.engine import Stage
from harness.runtime.launches import Launch, further_evidence


def run_scorer_level(stage: Stage) -> None:
    """Run every case on each of this rank's logical ranks; no collectives are involved."""
    scenario, source = stage.task.scenario, stage.source
    config = transformer_config(scenario, modelled=source.modelled)
    stage.watched.config = config
    for case in cases(scenario):
        for cp_rank in stage.task.cp_ranks:
            begin(stage, case, cp_rank)
            inputs = scorer_inputs(scenario.model, case.sources, case.pack, cp_rank)
            seen = replace(
                inputs,
                q=as_production(as_given(inputs.q, scenario.values), source),
                k=as_production(as_given(inputs.k, scenario.values), source),
                weights=as_production(as_given(inputs.weights, scenario.values), source),
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
            launch = Launch(
                cp_rank=cp_rank,
                module=None,
                inputs={"q": inputs.q, "k": inputs.k, "weights": inputs.weights},
                forward=partial(_forward_again, config, cp_rank),
                rows={"q": 0, "weights": 0},
                keys={"k": 0},
            )
            further_evidence(stage, case, launch)


def _forward_again(
    config: Any, cp_rank: int, case: Case, inputs: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    return run_scorer(
        config,
        ScorerInputs(q=inputs["q"], k=inputs["k"], weights=inputs["weights"]),
        case.pack,
        cp_rank,
        packed=case.packed,
        explicit_key_positions=case.spec.key_positions == "explicit",
    )
