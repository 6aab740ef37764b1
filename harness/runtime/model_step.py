"""A training step of several microbatches, held against each of them run alone."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from harness.evidence.trained_call import grad_or_zero
from harness.production.indexer_log import clear_log, logged_loss
from harness.record.evidence import ValueEvidence
from harness.record.result import Phase
from harness.reference.expected import Expected, compare_expected, sum_partials
from harness.reference.site import Site
from harness.reference.tolerances import load_tolerances
from harness.reference.values import compare_values
from harness.runtime.cases import Case, begin, kernels, site_of
from harness.runtime.model_run import ModelRun, forward_loss

STEP = "step."
"""Stands before the names of values of a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone:
    """One microbatch run alone.

    Attributes:
        case: The microbatch.
        gradients: Parameter name to its gradient on this rank, fp64.
        due: Name of an indexer parameter's gradient to its reference on this rank.
        logged: Indexer loss as Megatron logged it.
    """

    case: Case
    gradients: dict[str, torch.Tensor]
    due: dict[str, Expected]
    logged: torch.Tensor


def run_step(run: ModelRun, alone: Sequence[Alone]) -> None:
    """Run the microbatches of one seed as one step, and compare what has accumulated.

    Nothing to do without backward or with a single microbatch that no schedule is asked of.
    """
    scenario = run.stage.task.scenario
    if not run.trains or (len(alone) < 2 and scenario.schedule is None):
        return
    logged = _accumulate(run, [item.case for item in alone])
    run.stage.journal.phase(Phase.COMPARE)
    site = replace(site_of(run.stage, alone[-1].case, run.groups.cp_rank), layer=0)
    for record in _compared(run, alone, logged, site):
        named = replace(record, name=f"{STEP}{record.name}")
        run.stage.journal.evidence(run.role.named(named))


def steps_of(schedule: Sequence[str] | None, count: int) -> list[tuple[str, int]]:
    """Return (kind, microbatch) in order: the schedule's, or forward of all, then backward."""
    if schedule is not None:
        return [(step[0], int(step[1:])) for step in schedule]
    return [(kind, index) for kind in "FB" for index in range(count)]


def _accumulate(run: ModelRun, microbatches: list[Case]) -> torch.Tensor:
    """Run forwards and backwards in order without clearing gradients; return the logged loss."""
    stage = run.stage
    run.model.zero_grad(set_to_none=True)
    clear_log()
    losses: dict[int, torch.Tensor] = {}
    with _kept_dressers(run):
        for kind, index in steps_of(stage.task.scenario.schedule, len(microbatches)):
            case = microbatches[index]
            with kernels(stage, case):
                if kind == "F":
                    begin(stage, case, run.groups.cp_rank, planted=run.role.planted)
                    losses[index] = forward_loss(run, case).loss
                else:
                    stage.journal.phase(Phase.BACKWARD)
                    losses.pop(index).backward()
    return logged_loss(run.groups, loss_scale=1.0 / len(microbatches))


@contextlib.contextmanager
def _kept_dressers(run: ModelRun) -> Iterator[None]:
    """Leave no calls of the step behind for the next case."""
    try:
        yield
    finally:
        run.stage.recorder.clear()


def _compared(
    run: ModelRun, alone: Sequence[Alone], logged: torch.Tensor, site: Site
) -> Iterator[ValueEvidence]:
    dtype, tolerances = run.stage.task.scenario.values.dtype, load_tolerances()
    bounds = tolerances.of("accumulated", dtype)
    for name, parameter in run.model.named_parameters():
        parts = torch.stack([item.gradients[name] for item in alone])
        yield compare_values(
            f"grad.param.{name}",
            grad_or_zero(parameter).double(),
            parts.sum(0),
            # The running sum is rounded as it grows, however small it ends.
            atol=bounds.atol_of_max * parts.abs().sum(0),
            rtol=bounds.rtol,
            reason=bounds.reason,
            gradient=True,
        ).evidence(site)
        full = f"grad.param.{name}"
        if all(full in item.due for item in alone):
            due = sum_partials(item.due[full] for item in alone)
            record = compare_expected(
                full, grad_or_zero(parameter), due, dtype=dtype, tolerances=tolerances
            ).evidence(site)
            yield replace(record, name=f"reference.{full}")
    mean = torch.stack([item.logged for item in alone]).double().mean()
    bounds = tolerances.of("cp_loss", "fp32")
    yield compare_values(
        "logged_loss",
        logged.double(),
        mean,
        atol=bounds.without_scale(mean),
        rtol=bounds.rtol,
        reason="Megatron adds up microbatches in fp32 and divides by their number.",
    ).evidence(site)
