"""What a sharing layer attended with, and which gradient or loss a trained call has."""

from __future__ import annotations

import torch

from harness.evidence.logged import logged_value
from harness.evidence.sharing import observe_layer, shared_path, watch_shared_picks
from harness.evidence.trained_call import TrainedCall
from harness.production.recorder import Recorder
from harness.reference.expected import Expected
from harness.reference.site import Site
from harness.scenario.spec import MicrobatchSpec, ModelSpec, Scenario

SITE = Site(global_rank=0, cp_rank=0, layer=2)
SCENARIO = Scenario(
    id="a/b",
    summary="Logged.",
    model=ModelSpec(name="small"),
    microbatches=(MicrobatchSpec(sequences=(8,)),),
)


def recorded(*, handed: torch.Tensor, length: torch.Tensor | None = None) -> Recorder:
    """A layer that scores and one that is handed picks."""
    recorder = Recorder()
    watch_shared_picks(recorder)
    own = torch.tensor([[[0, -1], [1, 0]]])
    arguments = {
        "q": torch.zeros(2, 1, 1, 4),
        "k": torch.zeros(2, 1, 4),
        "weights": torch.zeros(2, 1, 1),
    }
    recorder.layer = 1
    recorder.record("naive_topk", "megatron", None, arguments, lambda: (torch.zeros(1), own))
    recorder.record(
        "sparse_attention", "megatron", None, {"topk_indices": own}, lambda: torch.zeros(1)
    )
    recorder.layer = 2
    given = {"topk_indices": handed, "topk_length": length, "query": torch.zeros(1)}
    recorder.record("sparse_attention", "megatron", None, given, lambda: torch.zeros(1))
    return recorder


def test_a_sharing_layer_is_judged_by_the_picks_its_attention_was_given():
    handed = torch.tensor([[[0, -1], [0, 1]]], dtype=torch.int32)
    recorder = recorded(handed=handed)
    observation = observe_layer(recorder, 2, 1)
    assert observation is not None
    assert observation.picks.tolist() == [[[0, -1], [0, 1]]]
    assert observe_layer(recorder, 1, 1).picks.tolist() == [[[0, -1], [1, 0]]]
    # A layer of its own that never scored has nothing to be judged by.
    assert observe_layer(recorder, 2, 2) is None


def test_picks_are_those_at_the_time_of_the_call():
    handed = torch.tensor([[[0, -1], [1, 0]]])
    recorder = recorded(handed=handed)
    handed.clamp_(min=0)
    assert observe_layer(recorder, 2, 1).picks.tolist() == [[[0, -1], [1, 0]]]


def test_slots_behind_a_rows_length_hold_no_pick():
    handed = torch.tensor([[[0, 7], [1, 0]]])
    recorder = recorded(handed=handed, length=torch.tensor([[1, 2]]))
    assert observe_layer(recorder, 2, 1).picks.tolist() == [[[0, -1], [1, 0]]]


def test_only_picks_are_kept_of_a_sparse_attention():
    recorder = recorded(handed=torch.tensor([[[0, -1], [1, 0]]]))
    (call,) = recorder.of("sparse_attention", layer=2)
    assert set(call.arguments) == {"topk_indices"}
    assert call.result is None


def test_the_path_of_a_sharing_layer_names_its_source():
    recorder = recorded(handed=torch.tensor([[[0, -1], [1, 0]]]))
    path = shared_path(recorder, SITE, "none", 1)
    assert (path.plan, path.layer, path.fused) == ("shared", 2, False)
    assert "picks of layer 1" in path.reason


def test_a_gradient_that_never_arrived_counts_as_zero():
    output = torch.ones(3, 1, 4, requires_grad=True)
    call = TrainedCall(
        query=torch.ones(3, 2, 8), key=torch.ones(3, 1, 8), output=output, up_v=torch.ones(2, 2, 4)
    )
    assert call.given.tolist() == torch.zeros(3, 1, 4).tolist()
    assert call.of_rows()["grad.query"].shape == (3, 1, 2, 8)
    assert call.of_keys()["grad.key"].shape == (3, 1, 8)
    assert "grad.weights" not in call.of_rows()


def test_the_logged_loss_is_the_mean_over_layers_that_have_one():
    def loss(size: float) -> Expected:
        return Expected(value=torch.tensor(size), scale=torch.tensor(4 * size))

    losses = {1: loss(0.5), 3: loss(0.25)}
    assert logged_value(torch.tensor(0.375), losses, SCENARIO, SITE).within
    # Divided by four layers, of which two compute a loss.
    assert not logged_value(torch.tensor(0.1875), losses, SCENARIO, SITE).within
    assert logged_value(torch.tensor(0.0), {}, SCENARIO, SITE).within
    assert not logged_value(torch.tensor(1e-6), {}, SCENARIO, SITE).within
