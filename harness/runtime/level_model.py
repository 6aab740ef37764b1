"""Level ``model`` on one rank: GPT layers, loss and backward, every attention call judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.evidence.training import TrainedCall, training_values
from harness.kernels.wrapping import unwrap
from harness.production.backend import as_production
from harness.production.config import transformer_config
from harness.production.groups import Groups, gather_rows, model_parallel
from harness.production.model import absorbed_linear, build_model, run_model, token_inputs
from harness.production.packs import to_packed_order
from harness.record.evidence import NoteEvidence
from harness.record.result import Phase
from harness.runtime.cases import Case, begin, cases, conclude_case, kernels, site_of
from harness.runtime.engine import Stage

LOSS = "language model loss"
"""Topic of the note that holds a case's mean token loss over the group."""


def run_model_level(stage: Stage) -> None:
    """Run every case through one model."""
    scenario = stage.task.scenario
    config = transformer_config(scenario, modelled=stage.source.modelled)
    with model_parallel(scenario.parallel) as groups, absorbed_linear(stage.provider_name):
        model = build_model(scenario, config, stage.provider)
        # Megatron's own autograd functions hand on plain tensors, so they are dressed again here.
        stage.recorder.dressers["attention"] = _as_production(stage)
        for case in cases(scenario):
            begin(stage, case, groups.cp_rank)
            _run_case(stage, case, groups, model)


def _as_production(stage: Stage) -> Callable[[str, Any], Any]:
    """Dress what goes into attention so that production branches run with modelled kernels."""

    def dress(name: str, value: Any) -> Any:
        is_input = name in ("query", "key", "x", "qr") and isinstance(value, torch.Tensor)
        return as_production(value, stage.source) if is_input else value

    return dress


def _run_case(stage: Stage, case: Case, groups: Groups, model: Any) -> None:
    scenario = stage.task.scenario
    model.zero_grad(set_to_none=True)
    inputs = token_inputs(
        scenario.model.vocab_size,
        case.pack,
        groups.cp_rank,
        seed=case.seed,
        microbatch=case.index,
    )
    trains = scenario.training.backward
    with kernels(stage, case), torch.set_grad_enabled(trains):
        losses = unwrap_keeping_graph(run_model(model, inputs, case.pack))
        loss = losses.float().mean()
        if trains:
            trained = _retained(stage)
            stage.journal.phase(Phase.BACKWARD)
            loss.backward()
    stage.journal.phase(Phase.COMPARE)
    mean = torch.stack(gather_rows(loss.detach().view(1), groups)).mean()
    stage.journal.evidence(NoteEvidence(topic=LOSS, text=f"{case.index}: {float(mean):.6f}"))
    if trains:
        _judge_values(stage, case, groups, trained)
    conclude_case(stage, case, groups.cp_rank, _gathered_keys(stage, case, groups))


def unwrap_keeping_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Return a plain tensor of the same graph."""
    return tensor.as_subclass(torch.Tensor)


def _retained(stage: Stage) -> dict[int, dict[str, Any]]:
    """Keep the gradients of what goes into and comes out of each layer's attention."""
    kept: dict[int, dict[str, Any]] = {}
    for call in stage.recorder.of("attention"):
        indexer = stage.recorder.of("indexer", layer=call.layer)
        parts = {
            "query": call.arguments["query"],
            "key": call.arguments["key"],
            "output": call.result,
            "indexer": indexer[-1].result if indexer else (),
            "up_v": call.arguments["up_v_weight"],
        }
        for tensor in (parts["query"], parts["key"], parts["output"], *parts["indexer"]):
            if tensor.requires_grad:
                tensor.retain_grad()
        kept[call.layer] = parts
    return kept


def _judge_values(
    stage: Stage, case: Case, groups: Groups, trained: dict[int, dict[str, Any]]
) -> None:
    for layer, parts in trained.items():
        call = TrainedCall(
            query=parts["query"],
            key=parts["key"],
            indexer=parts["indexer"],
            output=parts["output"],
            upstream=parts["output"].grad,
            up_v=parts["up_v"].detach(),
        )
        site = site_of(stage, case, groups.cp_rank, layer=layer)
        scenario = stage.task.scenario
        for record in training_values(stage.recorder, call, scenario, case.pack, groups, site):
            stage.journal.evidence(record)


def _gathered_keys(stage: Stage, case: Case, groups: Groups) -> dict[int, torch.Tensor]:
    """Indexer keys ``[batch, keys, dim]`` of each layer in packed order."""
    keys = {}
    for call in stage.recorder.of("indexer"):
        _q, local, _weights = call.result
        gathered = torch.cat(gather_rows(unwrap(local), groups), dim=0)
        keys[call.layer] = to_packed_order(gathered, case.pack).transpose(0, 1)
    return keys
