"""One forward of the model with the loss of a training step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from harness.evidence.case_values import indexer_share
from harness.evidence.trained_call import TrainedCall
from harness.production.groups import Groups
from harness.production.model import run_model, token_inputs
from harness.production.packs import real_rows
from harness.runtime.cases import Case, mask_of
from harness.runtime.engine import Stage
from harness.runtime.twins import Role


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRun:
    """What all cases of a run share."""

    stage: Stage
    groups: Groups
    role: Role
    model: Any

    @property
    def trains(self) -> bool:
        """Whether backward runs."""
        return self.stage.task.scenario.training.backward

    @property
    def share(self) -> float:
        """Part of a rank's gradients in the group's, as training reduces them."""
        return indexer_share(self.stage.task.scenario, self.groups)

    def parameter_name(self, call: TrainedCall, layer: int, name: str) -> str:
        """Return the full name of an indexer's parameter by its name in the layer's record."""
        parameter = call.parameters[name.removeprefix("grad.param.")]
        for full, candidate in self.model.named_parameters():
            if candidate is parameter:
                return f"grad.param.{full}"
        raise AssertionError(f"layer {layer} has a parameter {name} that the model does not hold")


@dataclass(frozen=True, kw_only=True, slots=True)
class Forward:
    """Results of one forward.

    Attributes:
        inputs: Local inputs.
        token_loss: ``[1, rows]`` fp32, in the graph.
        loss: Scalar that backward starts from.
        embedded: Hidden states behind the embedding, gradient retained where there is a graph.
    """

    inputs: dict[str, torch.Tensor]
    token_loss: torch.Tensor
    loss: torch.Tensor
    embedded: torch.Tensor


def forward_loss(run: ModelRun, case: Case) -> Forward:
    """Run a case forward.

    The loss counts real tokens alone. As in Megatron's training loop a rank's is its sum, and
    gradients are summed over ranks, where ``calculate_per_token_loss`` is on; else it is its part
    of the group's mean times the number of ranks, and gradients are averaged.
    """
    scenario, groups = run.stage.task.scenario, run.groups
    inputs = token_inputs(
        scenario.model.vocab_size, case.pack, groups.cp_rank, seed=case.seed, microbatch=case.index
    )
    embedded: list[torch.Tensor] = []

    def keep(_module: Any, _args: Any, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
        embedded.append(output)

    handle = run.model.embedding.register_forward_hook(keep)
    try:
        losses = run_model(
            run.model, inputs, case.pack, real_token_mask=mask_of(case, groups.cp_rank)
        )
    finally:
        handle.remove()
    token_loss = losses.as_subclass(torch.Tensor).float()
    real = real_rows(case.pack, groups.cp_rank).to(token_loss.device)
    total = (token_loss[0] * real).sum()
    if not scenario.training.calculate_per_token_loss:
        total = total * groups.cp_size / max(1, sum(case.pack.q_lengths))
    return Forward(inputs=inputs, token_loss=token_loss, loss=total, embedded=embedded[-1])
