"""A training step of several microbatches, held against each of them run alone."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from harness.evidence.replay import Replays
from harness.evidence.trained_call import grad_or_zero
from harness.production.groups import Groups
from harness.production.indexer_log import clear_log, logged_loss
from harness.record.evidence import ValueEvidence
from harness.record.phase import Phase
from harness.record.replay import STEP
from harness.reference.expected import Expected, compare_expected, sum_partials
from harness.reference.site import Site
from harness.reference.tolerances import load_tolerances
from harness.reference.values import compare_values
from harness.runtime.cases import Case, begin, kernels, site_of
from harness.runtime.model_run import ModelRun, forward_loss, replayed_backward, write_replays

PREFIX = "step."
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
    trained = [item for item in alone if not item.case.spec.forward_only]
    if not trained:
        return
    last = run.at(alone[-1].case).groups
    logged = _accumulate(run, [item.case for item in alone], last)
    run.stage.journal.phase(Phase.COMPARE)
    site = replace(site_of(run.stage, alone[-1].case, last.cp_rank), layer=0)
    for record in _compared(run, trained, logged, site):
        named = replace(record, name=f"{PREFIX}{record.name}")
        run.stage.journal.evidence(run.role.named(named))


def steps_of(
    schedule: Sequence[str] | None, count: int, evaluated: Collection[int] = ()
) -> list[tuple[str, int]]:
    """Return (kind, microbatch) in order: the schedule's, or forward of all, then backward.

    Args:
        schedule: Of the scenario, None for none.
        count: Number of microbatches.
        evaluated: Those that have no backward.
    """
    if schedule is not None:
        return [(step[0], int(step[1:])) for step in schedule]
    return [
        (kind, index)
        for kind in "FB"
        for index in range(count)
        if kind == "F" or index not in evaluated
    ]


def _accumulate(run: ModelRun, microbatches: list[Case], groups: Groups) -> torch.Tensor:
    """Run forwards and backwards in order without clearing gradients; return the logged loss.

    Args:
        run: The run.
        microbatches: Those of one seed, evaluation steps among them.
        groups: Of the last one, over which what is logged is reduced.
    """
    stage = run.stage
    run.model.zero_grad(set_to_none=True)
    clear_log()
    evaluated = [case.index for case in microbatches if case.spec.forward_only]
    losses: dict[int, torch.Tensor] = {}
    replays: dict[int, Replays] = {}
    with _kept_dressers(run):
        for kind, index in steps_of(stage.task.scenario.schedule, len(microbatches), evaluated):
            case = microbatches[index]
            here = run.at(case)
            with kernels(stage, case):
                if kind == "F":
                    begin(stage, case, here.groups.cp_rank, planted=run.role.planted)
                    with here.mode():
                        loss = forward_loss(here, case).loss
                    if here.trains:
                        losses[index] = loss
                        replays[index] = Replays(forward=list(stage.recorder.calls))
                else:
                    stage.journal.phase(Phase.BACKWARD)
                    replayed_backward(here, losses.pop(index), replays[index])
                    stage.journal.phase(Phase.COMPARE)
                    write_replays(here, case, replays.pop(index), scope=STEP)
    return logged_loss(groups, loss_scale=1.0 / (len(microbatches) - len(evaluated)))


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
    if not all(run.logs_own(item.case) for item in alone):
        return
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
