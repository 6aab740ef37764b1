"""One forward of the model with the loss of a training step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from harness.evidence.case_values import indexer_share
from harness.evidence.replay import Replays, replay_evidence
from harness.evidence.trained_call import TrainedCall
from harness.production.groups import Groups, GroupStore
from harness.production.model import run_model, token_inputs
from harness.production.packs import real_rows
from harness.runtime.cases import Case, mask_of, site_of
from harness.runtime.engine import Stage
from harness.runtime.twins import Role


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRun:
    """What all cases of a run share.

    Attributes:
        store: Groups of every effective size; empty without Dynamic CP.
        groups: Those of the case that runs, see ``at``.
        evaluates: Whether the case that runs is an evaluation step.
    """

    stage: Stage
    store: GroupStore
    groups: Groups
    role: Role
    model: Any
    evaluates: bool = False

    @property
    def trains(self) -> bool:
        """Whether backward of the case runs."""
        return self.stage.task.scenario.training.backward and not self.evaluates

    @property
    def dynamic(self) -> bool:
        """Whether microbatches say which group they run on."""
        return self.stage.task.scenario.parallel.dynamic_context_parallel

    @property
    def given_group(self) -> tuple[int, Any] | None:
        """CP size and group that the case's ``PackedSeqParams`` carry, None for neither."""
        if not self.dynamic:
            return None
        return self.groups.cp_size, self.groups.effective if self.groups.grouped else None

    def at(self, case: Case) -> ModelRun:
        """Return the run with the groups of a case; the layers are set for it."""
        groups = self.store.configured
        if self.dynamic:
            groups = self.store.of(case.pack.cp_size, grouped=case.spec.cp_group == "real")
        return replace(self, groups=groups, evaluates=case.spec.forward_only)

    def logs_own(self, case: Case) -> bool:
        """Whether what Megatron logs is of this case's pack alone.

        It is the mean over data-parallel replicas, and under Dynamic CP each may have its own.
        """
        return not (case.spec.beside and self.store.configured.dp_size > 1)

    @contextlib.contextmanager
    def mode(self) -> Iterator[None]:
        """Run layers for training or evaluation, with a graph or without."""
        self.model.train(not self.evaluates)
        try:
            with torch.set_grad_enabled(self.trains):
                yield
        finally:
            self.model.train()

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
        token_loss: ``[batch, rows]`` fp32, in the graph.
        loss: Scalar that backward starts from.
        embedded: Hidden states behind the embedding, gradient retained where there is a graph.
    """

    inputs: dict[str, torch.Tensor]
    token_loss: torch.Tensor
    loss: torch.Tensor
    embedded: torch.Tensor


def num_tokens(case: Case) -> int:
    """Real tokens of a case over its group, at least 1."""
    return max(1, sum(case.pack.q_lengths) * (1 if case.packed else len(case.sources)))


def _inputs(run: ModelRun, case: Case) -> dict[str, torch.Tensor]:
    """Local inputs ``[batch, rows]`` of a case."""
    vocab_size = run.stage.task.scenario.model.vocab_size
    streams = [
        token_inputs(
            vocab_size,
            case.pack,
            run.groups.cp_rank,
            seed=case.seed,
            microbatch=case.index,
            stream=source.stream,
        )
        for source in case.sources
    ]
    return {name: torch.cat([stream[name] for stream in streams]) for name in streams[0]}


def forward_loss(run: ModelRun, case: Case) -> Forward:
    """Run a case forward.

    The loss counts real tokens alone. As in Megatron's training loop a rank's is its sum, and
    gradients are summed over ranks, where ``calculate_per_token_loss`` is on; else it is its part
    of the group's mean times the number of ranks, and gradients are averaged.
    """
    scenario, groups = run.stage.task.scenario, run.groups
    inputs = _inputs(run, case)
    embedded: list[torch.Tensor] = []

    def keep(_module: Any, _args: Any, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.retain_grad()
        embedded.append(output)

    handle = run.model.embedding.register_forward_hook(keep)
    try:
        losses = run_model(
            run.model,
            inputs,
            case.pack if case.packed else None,
            real_token_mask=mask_of(case, groups.cp_rank),
            given_group=run.given_group,
        )
    finally:
        handle.remove()
    token_loss = losses.as_subclass(torch.Tensor).float()
    real = real_rows(case.pack, groups.cp_rank).to(token_loss.device)
    total = (token_loss * real).sum()
    if not scenario.training.calculate_per_token_loss:
        total = total * groups.cp_size / num_tokens(case)
    return Forward(inputs=inputs, token_loss=token_loss, loss=total, embedded=embedded[-1])


def replayed_backward(run: ModelRun, loss: torch.Tensor, replays: Replays) -> None:
    """Run backward of a microbatch, and keep apart what it computes again of the forward."""
    recorder = run.stage.recorder
    start = len(recorder.calls)
    loss.backward()
    replays.take(recorder, start)


def write_replays(run: ModelRun, case: Case, replays: Replays, *, scope: str) -> None:
    """Hold what backward computed again against the microbatch's forward."""
    stage = run.stage
    if stage.task.scenario.training.recompute == "none":
        return
    for record in replay_evidence(
        replays,
        stage.recorder,
        scope=scope,
        scenario=stage.task.scenario,
        pack=case.pack,
        site=site_of(stage, case, run.groups.cp_rank),
    ):
        stage.journal.evidence(record)
