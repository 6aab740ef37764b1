"""What backward made again is told from its own kernels, and held against the forward."""

from __future__ import annotations

from dataclasses import replace

import torch

from harness.evidence.plants import plant
from harness.evidence.replay import Replays, replay_evidence, unwatch_trained, watch_trained
from harness.layout import pack_sequences
from harness.production.recorder import Recorder
from harness.reference.rows import rows_of_rank
from harness.reference.site import Site
from harness.scenario.spec import MicrobatchSpec, ModelSpec, Scenario

SITE = Site(global_rank=0, cp_rank=0)
PACK = pack_sequences([4], cp_size=1)
SCENARIO = Scenario(
    id="a/b",
    summary="Replayed.",
    model=ModelSpec(name="small", dsa_indexer_topk=2),
    microbatches=(MicrobatchSpec(sequences=(4,)),),
)
OPERANDS = {
    "q": torch.ones(4, 1, 1, 4),
    "k": torch.arange(4.0).view(4, 1, 1).expand(4, 1, 4).contiguous(),
    "weights": torch.ones(4, 1, 1),
}
PICKS = torch.tensor([[[0, -1], [1, 0], [2, 1], [3, 2]]])


def attend(recorder: Recorder, picks: torch.Tensor, bounds: int = 4) -> None:
    def inside() -> torch.Tensor:
        table = torch.full((4,), bounds)
        recorder.record("bounds", "megatron", None, {}, lambda: (None, (table, table, None), True))
        recorder.record(
            "naive_topk", "megatron", None, OPERANDS, lambda: (torch.zeros(1), picks.clone())
        )
        return torch.zeros(4, 1, 4)

    recorder.record("attention", "megatron", None, {}, inside)


def replayed(again: torch.Tensor, *, bounds: int = 4) -> tuple[Recorder, Replays]:
    """A forward, then a backward that computes attention again between kernels of its own."""
    recorder = Recorder()
    attend(recorder, PICKS)
    replays = Replays(forward=list(recorder.calls))
    start = len(recorder.calls)
    recorder.record("sparse_attention_backward", "modelled", None, {}, lambda: None)
    attend(recorder, again, bounds)
    recorder.record("indexer_backward", "modelled", None, {}, lambda: None)
    replays.take(recorder, start)
    return recorder, replays


def evidence(recorder: Recorder, replays: Replays):
    (found,) = replay_evidence(
        replays, recorder, scope="microbatch", scenario=SCENARIO, pack=PACK, site=SITE
    )
    return found


def test_kernels_of_backward_stay_and_attention_made_again_goes():
    recorder, replays = replayed(PICKS)
    assert [call.symbol for call in recorder.calls] == [
        *("attention", "bounds", "naive_topk"),
        *("sparse_attention_backward", "indexer_backward"),
    ]
    assert [call.symbol for call in replays.again] == ["attention", "bounds", "naive_topk"]
    assert replays.counts == {1: 1}


def test_an_equal_replay_has_no_differences():
    found = evidence(*replayed(PICKS))
    assert (found.replays, found.rows, found.tables) == (1, 4, 2)
    assert found.differences == ()


def test_other_keys_and_other_tables_are_seen():
    other = PICKS.clone()
    other[0, 3] = torch.tensor([1, 0])
    found = evidence(*replayed(other))
    assert (found.rows_different, found.rows_tied, found.first_different) == (1, 0, 3)
    assert evidence(*replayed(PICKS, bounds=3)).tables_different == ("bounds",)


def test_keys_in_another_order_and_keys_that_score_the_same_are_the_same():
    assert evidence(*replayed(PICKS.flip(-1))).differences == ()


def test_a_layer_that_was_not_computed_again_says_so():
    recorder = Recorder()
    attend(recorder, PICKS)
    found = evidence(recorder, Replays(forward=list(recorder.calls)))
    assert (found.replays, found.rows, found.differences) == (0, 0, ())


def test_gradients_are_kept_where_there_is_a_graph_alone():
    class Module:
        indexer = None

    def call(recorder: Recorder) -> None:
        key = torch.ones(2, requires_grad=True)
        arguments = {"self": Module(), "query": key, "key": key, "up_v_weight": key}
        recorder.record("attention", "megatron", None, arguments, lambda: key * 2)

    recorder = Recorder()
    calls = watch_trained(recorder)
    with torch.no_grad():
        call(recorder)
    assert calls == {}
    call(recorder)
    calls[1].output.sum().backward()
    assert calls[1].output.grad.tolist() == [1.0, 1.0]
    unwatch_trained(recorder)
    assert "attention" not in recorder.reducers


def test_outputs_that_are_never_let_go_pile_up_over_forwards():
    recorder = Recorder()
    table = rows_of_rank(PACK, 0)
    for forward in range(3):
        recorder.clear()
        plant(recorder, ("kept_output",), table, 4)
        attend(recorder, PICKS)
        assert len(recorder.planted["kept_output"]) == forward + 1
    recorder.clear()
    plant(recorder, (), table, 4)
    attend(recorder, PICKS)
    assert len(recorder.planted["kept_output"]) == 3


def test_a_mixed_recorder_takes_each_layer_from_where_gradients_flowed():
    recorder, replays = replayed(PICKS)
    other = replace(replays.forward[0], layer=2)
    mixed = replace(replays, forward=[*replays.forward, other]).trained(recorder)
    assert [call.layer for call in mixed.calls] == [2, 1, 1, 1]
    assert mixed.calls[0] is other
