"""Each planted selection fault makes exactly the picks wrong that it says, and only those."""

from __future__ import annotations

import pytest
import torch

from harness.evidence.plants import PLANTS, plant
from harness.layout import pack_sequences
from harness.production.recorder import Recorder
from harness.reference.operands import Operands
from harness.reference.rows import rows_of_rank
from harness.reference.scores import exact_scores
from harness.reference.selection import judge_selection

TOPK = 4


@pytest.fixture
def case():
    pack = pack_sequences([32, 16], cp_size=2)
    table = rows_of_rank(pack, 1)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(len(table), 2, 8, generator=generator)
    k = torch.randn(pack.total_k, 8, generator=generator)
    w = torch.randn(len(table), 2, generator=generator)
    operands = Operands(q=q, k=k, w=w)
    scores = exact_scores(q, k, w, dtype=torch.float32)
    keys = torch.arange(pack.total_k)
    starts, ends = table.starts.unsqueeze(1), (table.starts + table.limits).unsqueeze(1)
    scores = scores.masked_fill((keys < starts) | (keys >= ends), -torch.inf)
    values, picks = scores.topk(TOPK)
    return picks.masked_fill(values == -torch.inf, -1), operands, table


def judge(picks, operands, table):
    return judge_selection(picks, operands, table, topk=TOPK).counts


def test_healthy_twin(case):
    assert int(judge(*case).num_wrong.sum()) == 0


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("wrong_index", "below"),
        ("past_limit", "future"),
        ("neighbour_sequence", "foreign"),
        ("duplicate_index", "duplicate"),
    ],
)
def test_plant_shows_under_its_own_count(case, kind, count):
    picks, operands, table = case
    changed = picks.clone()
    PLANTS[kind](changed, table)
    assert int((changed != picks).any(dim=1).sum()) == 1
    assert int(judge(changed, operands, table).of(count).sum()) == 1


def test_plants_reach_the_scorers_result_through_the_recorder(case):
    picks, _operands, table = case
    recorder = Recorder()
    plant(recorder, ("duplicate_index",), table)
    result = recorder.record("fused_topk", "megatron", None, {}, lambda: (picks[None], None, None))
    assert not torch.equal(result[0][0], picks)
    assert torch.equal(recorder.calls[0].result[0], result[0])


def test_unfused_path_switches_the_kernels_off_silently(case):
    recorder = Recorder()
    plant(recorder, ("unfused_path",), case[2])
    assert recorder.record("use_fused", "megatron", None, {}, lambda: True) is False


def test_no_plant_clears_the_transforms(case):
    recorder = Recorder()
    plant(recorder, ("unfused_path",), case[2])
    plant(recorder, (), case[2])
    assert not recorder.transforms


def test_a_rank_without_a_fitting_row_says_so():
    table = rows_of_rank(pack_sequences([8], cp_size=1), 0)
    with pytest.raises(ValueError, match="use a longer pack"):
        PLANTS["neighbour_sequence"](torch.zeros(8, 4, dtype=torch.int64), table)
