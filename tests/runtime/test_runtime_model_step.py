"""A step of several microbatches against each alone: a lost one, a doubled one, a wrong metric."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from harness.reference.expected import Expected
from harness.reference.site import Site
from harness.runtime.model_step import Alone, _compared, steps_of
from harness.scenario.spec import MicrobatchSpec, ModelSpec, Scenario, ValuesSpec

SITE = Site(global_rank=0, cp_rank=0)


def step(
    dtype: str, *, weights=(1.0, 1.0, 1.0), logged: float | None = None, own: bool = True
) -> set[str]:
    """Names that are wrong when microbatches have entered the sums with these weights."""
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randn(4, 8, generator=generator).double() for _ in weights]
    parameter = torch.nn.Parameter(
        torch.zeros(4, 8, dtype=torch.bfloat16 if dtype == "bf16" else torch.float32)
    )
    grad = torch.zeros_like(parameter)
    for weight, part in zip(weights, parts, strict=True):
        grad += (weight * part).to(grad.dtype)
    parameter.grad = grad
    model = SimpleNamespace(named_parameters=lambda: [("w", parameter)])
    scenario = Scenario(
        id="a/b",
        summary="Step.",
        model=ModelSpec(name="small"),
        microbatches=(MicrobatchSpec(sequences=(8,)),) * len(weights),
        values=ValuesSpec(dtype=dtype),
    )
    task = SimpleNamespace(scenario=scenario)
    run = SimpleNamespace(model=model, stage=SimpleNamespace(task=task), logs_own=lambda _case: own)
    alone = [
        Alone(
            case=None,
            gradients={"w": part.to(grad.dtype).double()},
            due={"grad.param.w": Expected(value=part, scale=part.abs())},
            logged=torch.tensor(0.5 + 0.25 * place),
        )
        for place, part in enumerate(parts)
    ]
    mean = sum(float(item.logged) for item in alone) / len(alone)
    found = torch.tensor(mean if logged is None else logged)
    return {record.name for record in _compared(run, alone, found, SITE) if not record.within}


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_sum_of_all_microbatches_is_right(dtype):
    assert step(dtype) == set()


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize(
    "weights", [(0.0, 1.0, 1.0), (1.0, 1.0, 2.0), (1 / 3, 1 / 3, 1 / 3), (1.0, 0.9, 1.0)]
)
def test_a_microbatch_that_is_lost_doubled_or_scaled_is_seen(dtype, weights):
    assert step(dtype, weights=weights) == {"grad.param.w", "reference.grad.param.w"}


def test_a_logged_loss_that_is_no_mean_is_seen():
    assert step("fp32", logged=0.75) == set()
    assert step("fp32", logged=2.25) == {"logged_loss"}


def test_what_replicas_log_of_packs_of_their_own_is_not_held_against_one_of_them():
    assert step("fp32", logged=0.75, own=False) == step("fp32", logged=2.25, own=False) == set()


def test_evaluated_microbatches_have_no_backward():
    assert steps_of(None, 3, [1]) == [("F", 0), ("F", 1), ("F", 2), ("B", 0), ("B", 2)]
