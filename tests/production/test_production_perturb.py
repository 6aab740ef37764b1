"""Each perturbation changes what it says on the rank it is aimed at, and nothing without it."""

from __future__ import annotations

import pytest
import torch

from harness.kernels import cuda_like, modelled_namespace
from harness.production.perturb import CHANGES, Perturbation
from harness.production.recorder import Recorder
from harness.reference.site import Site
from harness.scenario.names import PERTURBATIONS
from harness.scenario.spec import PerturbSpec

SITE = Site(global_rank=1, cp_rank=1, microbatch=0, layer=1, seed=0)


def operands() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "q_indexer": cuda_like(torch.randn(6, 1, 8, 4, generator=generator).bfloat16()),
        "k_indexer": cuda_like(torch.randn(9, 1, 4, generator=generator).bfloat16()),
        "indexer_weights": cuda_like(torch.randn(6, 1, 8, generator=generator).bfloat16()),
        "varlen_starts": torch.zeros(6, dtype=torch.int32),
        "varlen_ends": torch.arange(1, 7, dtype=torch.int32),
        "query": torch.ones(6, 1, 2, 4),
    }


def handed_over(spec: PerturbSpec, site: Site = SITE):
    """What the dispatcher is given, and the evidence, after a call that asks one kernel."""
    recorder, perturbation = Recorder(), Perturbation(spec=spec)
    perturbation.aim(recorder, site)
    given = operands()
    dresser = recorder.dressers.get("dispatch_attention")
    changed = {name: dresser(name, v) if dresser else v for name, v in given.items()}

    def call() -> torch.Tensor:
        recorder.record("indexer_forward", "modelled", None, {}, lambda: torch.ones(1))
        return torch.ones(1)

    recorder.record("dispatch_attention", "megatron", None, changed, call)
    return given, changed, list(perturbation.evidence(recorder))


def test_every_perturbation_of_the_file_can_be_carried_out():
    assert set(CHANGES) | {"gradient_arity"} == set(PERTURBATIONS)


@pytest.mark.parametrize("fact", CHANGES)
def test_only_the_named_operands_change(fact):
    names, _change = CHANGES[fact]
    given, changed, (evidence,) = handed_over(PerturbSpec(fact=fact))
    different = {name for name in given if changed[name] is not given[name]}
    assert different == {name for name in given if name in names}
    assert set(evidence.arguments) == different
    assert evidence.fact == fact and evidence.global_rank == 1 and evidence.change
    assert evidence.kernels == ("indexer_forward",) and not evidence.declined


def test_the_changes_are_the_ones_named():
    changed = {fact: handed_over(PerturbSpec(fact=fact))[1] for fact in CHANGES}
    plain = operands()
    assert changed["device"]["k_indexer"].device != plain["q_indexer"].device
    assert changed["dtype"]["k_indexer"].dtype is torch.float32
    view = changed["view"]["q_indexer"]
    assert not view.is_contiguous() and torch.equal(view, plain["q_indexer"])
    assert changed["tp_slice"]["q_indexer"].shape == (6, 1, 4, 4)
    assert changed["tp_slice"]["indexer_weights"].shape == (6, 1, 4)
    assert changed["missing_starts"]["varlen_starts"] is None
    assert changed["missing_ends"]["varlen_ends"] is None


@pytest.mark.parametrize("spec", [PerturbSpec(), PerturbSpec(fact="device", ranks=(0,))])
def test_calls_of_other_ranks_and_scenarios_are_left_alone(spec):
    given, changed, evidence = handed_over(spec)
    assert all(changed[name] is given[name] for name in given)
    assert evidence == []


def test_a_declined_call_is_told_from_one_that_came_back():
    recorder, perturbation = Recorder(), Perturbation(spec=PerturbSpec(fact="missing_ends"))
    perturbation.aim(recorder, SITE)
    recorder.dressers["dispatch_attention"]("varlen_ends", torch.ones(1))
    recorder.record("dispatch_attention", "megatron", None, {}, lambda: None)
    (evidence,) = perturbation.evidence(recorder)
    assert evidence.declined and evidence.kernels == ()


def test_evidence_of_a_call_that_raises_is_there():
    recorder, perturbation = Recorder(), Perturbation(spec=PerturbSpec(fact="dtype"))
    perturbation.aim(recorder, SITE)
    recorder.dressers["dispatch_attention"]("k_indexer", operands()["k_indexer"])
    with pytest.raises(ValueError, match="refused"):
        recorder.record("dispatch_attention", "megatron", None, {}, refuse)
    (evidence,) = perturbation.evidence(recorder)
    assert evidence.change == "dtype bfloat16 became float32"
    assert evidence.kernels == ()


def refuse():
    raise ValueError("refused")


def test_modelled_kernels_take_tensors_of_one_device():
    from harness.kernels.other_device import on_other_device

    namespace = modelled_namespace()
    q = torch.randn(1, 8, 32, 128).bfloat16()
    k, w = torch.randn(1, 8, 1, 128).bfloat16(), torch.randn(1, 8, 32).bfloat16()
    assert namespace.indexer_forward_wrapper(q, cuda_like(k), w, ratio=1)["scores"].shape
    with pytest.raises(ValueError, match="one device, found q, w on cpu; k on cuda:1"):
        namespace.indexer_forward_wrapper(q, on_other_device(k), w, ratio=1)
