"""Planted faults of training change what they say, once per forward, and are gone in the next."""

from __future__ import annotations

import pytest
import torch

from harness.evidence import training_plants
from harness.evidence.plants import plant
from harness.evidence.training_plants import TRAINING_PLANTS
from harness.layout import pack_sequences
from harness.production.recorder import Recorder
from harness.reference.rows import rows_of_rank
from harness.runtime.inject import SELECTION_KINDS

TABLE = rows_of_rank(pack_sequences([16], cp_size=2), 0)


@pytest.fixture(autouse=True)
def four_ranks(monkeypatch):
    monkeypatch.setattr(training_plants, "_world_size", lambda: 4)


def planted(*kinds: str) -> Recorder:
    recorder = Recorder()
    plant(recorder, kinds, TABLE, 4)
    return recorder


def called(recorder: Recorder, symbol: str, result):
    return recorder.record(symbol, "megatron", None, {}, lambda: result)


def test_every_kind_can_be_asked_for():
    assert set(TRAINING_PLANTS) <= set(SELECTION_KINDS)


def test_a_loss_of_the_wrong_group_is_scaled_in_its_graph():
    recorder, loss = planted("wrong_loss_group"), torch.ones((), requires_grad=True)
    output, scaled = called(recorder, "dispatch_attention", (torch.ones(2), loss))
    assert torch.equal(output, torch.ones(2)) and float(scaled.detach()) == 4.0
    scaled.backward()
    assert float(loss.grad) == 4.0
    assert called(recorder, "dispatch_attention", None) is None
    assert called(recorder, "dispatch_topk_loss", (1, 2, torch.ones(())))[2] == 4.0


def test_a_lost_gradient_cuts_the_weights_off_and_nothing_else():
    leaf = torch.ones(3, requires_grad=True)
    q, k, weights = called(planted("lost_gradient"), "indexer", (leaf * 1, leaf * 2, leaf * 3))
    assert q.requires_grad and k.requires_grad and not weights.requires_grad


def test_a_single_rank_loses_nothing(monkeypatch):
    monkeypatch.setattr(training_plants, "_world_size", lambda: 1)
    assert "indexer" not in planted("lost_gradient").transforms


def test_clamped_slots_hold_key_0_over_the_whole_width():
    dress = planted("clamped_slots").dressers["flash_attention"]
    ids = torch.tensor([[3, 7, -1, -1]])
    assert dress("topk_idxs", ids).tolist() == [[3, 7, 0, 0]]
    assert dress("topk_length", torch.tensor([2])).tolist() == [4]
    assert dress("d_v", 512) == 512


def test_the_next_case_is_clean():
    recorder = planted(*TRAINING_PLANTS)
    plant(recorder, (), TABLE, 4)
    assert "flash_attention" not in recorder.dressers
    assert not {"dispatch_attention", "indexer"} & set(recorder.transforms)
