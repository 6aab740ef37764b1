"""Each planted selection fault makes exactly the picks wrong that it says, and only those."""

from __future__ import annotations

import pytest
import torch

from harness.evidence.plants import PLANTS, plant
from harness.layout import pack_sequences
from harness.production.recorder import Recorder
from harness.reference.marks import Mark, sort_slots
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
    PLANTS[kind].strike(changed, table)
    assert int((changed != picks).any(dim=1).sum()) == 1
    assert int(judge(changed, operands, table).of(count).sum()) == 1


def picks_of_first_keys(pack, cp_rank):
    """Every row picks the first keys it may see, padding rows too; healthy in bounds."""
    table = rows_of_rank(pack, cp_rank)
    slots = torch.arange(TOPK).expand(len(table), TOPK)
    return torch.where(slots < table.limits[:, None], slots + table.starts[:, None], -1), table


def marks_of(picks, table):
    slots = sort_slots(picks, table)
    return {row: mark for row in range(len(table)) if (mark := int(slots.marks[row].max())) > 0}


@pytest.mark.parametrize(
    ("pack", "cp_rank", "tail"),
    [
        (pack_sequences([3, 2], cp_size=2), 0, False),
        (pack_sequences([30, 14], cp_size=2), 0, False),
        (pack_sequences([16, 16], cp_size=2, tail_padding=4), 1, True),
        (pack_sequences([16], cp_size=2, tail_padding=4), 0, True),
    ],
)
def test_a_padding_row_is_given_a_key_of_another_sequence(pack, cp_rank, tail):
    picks, table = picks_of_first_keys(pack, cp_rank)
    assert Mark.FOREIGN not in marks_of(picks, table).values()
    changed = picks.clone()
    PLANTS["key_on_padding"].strike(changed, table)
    (row,) = (changed != picks).any(dim=1).nonzero().flatten().tolist()
    assert not bool(table.valid[row])
    assert (int(table.sequence[row]) < 0) is tail
    assert int((sort_slots(changed, table).marks == Mark.FOREIGN).sum()) == 1


@pytest.mark.parametrize(
    ("lengths", "before", "behind"),
    [([16, 0, 12], 0, 2), ([0, 8, 0, 0, 16], 1, 4), ([8, 24, 0, 12, 8], 1, 3)],
)
def test_the_sequence_before_an_empty_entry_is_given_the_first_key_behind_it(
    lengths, before, behind
):
    pack = pack_sequences(lengths, cp_size=2)
    picks, table = picks_of_first_keys(pack, 1)
    changed = picks.clone()
    PLANTS["next_past_empty"].strike(changed, table)
    (row,) = (changed != picks).any(dim=1).nonzero().flatten().tolist()
    assert int(table.sequence[row]) == before
    assert int(changed[row, 0]) == pack.cu_seqlens_k_padded[behind]
    assert int((sort_slots(changed, table).marks == Mark.FOREIGN).sum()) == 1


@pytest.mark.parametrize(
    ("kind", "pack", "spared"),
    [
        ("key_on_padding", pack_sequences([16, 16], cp_size=2), True),
        ("key_on_padding", pack_sequences([14], cp_size=2), True),
        ("key_on_padding", pack_sequences([14, 16], cp_size=2), False),
        ("next_past_empty", pack_sequences([16, 12], cp_size=2), True),
        ("next_past_empty", pack_sequences([16, 0], cp_size=2), True),
        ("next_past_empty", pack_sequences([0, 16], cp_size=2), True),
        ("next_past_empty", pack_sequences([0, 0], cp_size=2, tail_padding=8), True),
        ("next_past_empty", pack_sequences([16, 0, 16], cp_size=2), False),
        ("wrong_index", pack_sequences([4], cp_size=2), True),
        ("wrong_index", pack_sequences([16], cp_size=2), False),
        ("past_limit", pack_sequences([1, 1], cp_size=1), True),
        ("past_limit", pack_sequences([2], cp_size=1), False),
        ("neighbour_sequence", pack_sequences([16], cp_size=2), True),
        ("neighbour_sequence", pack_sequences([4, 16], cp_size=2), False),
        ("duplicate_index", pack_sequences([2, 3], cp_size=1), True),
        ("duplicate_index", pack_sequences([4], cp_size=1), False),
    ],
)
def test_a_pack_without_room_for_the_fault_is_spared_and_told(kind, pack, spared):
    recorder = Recorder()
    assert plant(recorder, (kind,), rows_of_rank(pack, 0), TOPK) == ((kind,) if spared else ())
    assert bool(recorder.transforms) is not spared


def test_plants_reach_the_scorers_result_through_the_recorder(case):
    picks, _operands, table = case
    recorder = Recorder()
    plant(recorder, ("duplicate_index",), table, TOPK)
    result = recorder.record("fused_topk", "megatron", None, {}, lambda: (picks[None], None, None))
    assert not torch.equal(result[0][0], picks)
    assert torch.equal(recorder.calls[0].result[0], result[0])


def test_unfused_path_switches_the_kernels_off_silently(case):
    recorder = Recorder()
    plant(recorder, ("unfused_path",), case[2], TOPK)
    assert recorder.record("use_fused", "megatron", None, {}, lambda: True) is False


def test_no_plant_clears_the_transforms(case):
    recorder = Recorder()
    plant(recorder, ("unfused_path",), case[2], TOPK)
    plant(recorder, (), case[2], TOPK)
    assert not recorder.transforms


def test_a_rank_without_a_fitting_row_says_so():
    table = rows_of_rank(pack_sequences([8], cp_size=1), 0)
    with pytest.raises(ValueError, match="use a longer pack"):
        PLANTS["neighbour_sequence"].strike(torch.zeros(8, 4, dtype=torch.int64), table)
