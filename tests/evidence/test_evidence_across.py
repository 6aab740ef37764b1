"""One run against another: equal runs pass, each kind of difference is seen, ties are not one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from harness.evidence.across import TIED, compare_across
from harness.evidence.case_values import SELECTED, CaseValues, Scored
from harness.layout import local_runs, pack_sequences
from harness.record.evidence import NoteEvidence
from harness.reference.group_values import local_rows
from harness.reference.site import Site
from harness.scenario.spec import MicrobatchSpec, ModelSpec, Scenario

PACK = pack_sequences([8, 8], cp_size=2)
SITE = Site(global_rank=1, cp_rank=1)
SCENARIO = Scenario(
    id="a/b",
    summary="Across.",
    model=ModelSpec(name="small", dsa_indexer_topk=2),
    microbatches=(MicrobatchSpec(sequences=(8, 8)),),
)


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory):
    store = dist.FileStore(str(tmp_path_factory.mktemp("store") / "s"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def packed(scores) -> CaseValues:
    """The whole pack as one rank sees it, picks by ``scores`` of the keys."""
    picks = torch.full((16, 1, 2), -1)
    for row in range(16):
        start = row // 8 * 8
        visible = range(start, row + 1)
        best = sorted(visible, key=lambda key: -scores[key])[:2]
        picks[row, 0, : len(best)] = torch.tensor(best)
    generator = torch.Generator().manual_seed(0)
    return CaseValues(
        rows={
            (1, SELECTED): picks,
            (1, "attention_output"): torch.randn(16, 1, 4, generator=generator),
            (1, "grad.query"): torch.randn(16, 1, 4, generator=generator),
        },
        keys={(1, "grad.key"): torch.randn(16, 1, 4, generator=generator)},
        reduced={
            (1, "grad.param.w"): torch.randn(3, generator=generator).double(),
            (1, "logged_loss"): torch.tensor(0.25).double(),
        },
    )


SCORES = [float((7 * key) % 16 + 1) for key in range(16)]


def mine(whole: CaseValues, scores=SCORES) -> CaseValues:
    """This rank's share of a run, with a scorer of one head whose scores are ``scores``."""
    rows = sum(length for _, length in local_runs(PACK, 1))
    return CaseValues(
        rows={name: local_rows(t, PACK, 1).clone() for name, t in whole.rows.items()},
        keys={name: local_rows(t, PACK, 1).clone() for name, t in whole.keys.items()},
        reduced={name: t.clone() for name, t in whole.reduced.items()},
        scored={
            1: Scored(
                q=torch.ones(1, rows, 1, 1),
                k=torch.tensor(scores).view(1, 16, 1),
                weights=torch.ones(1, rows, 1),
            )
        },
    )


def compare(values: CaseValues, whole: CaseValues, **changes):
    return list(
        compare_across(
            "cp1.",
            values,
            whole,
            scenario=replace(SCENARIO, **changes),
            pack=PACK,
            site=SITE,
            group=dist.group.WORLD,
        )
    )


def wrong(records) -> set[str]:
    return {record.name for record in records if not record.within}


def test_equal_runs_are_equal_and_every_value_is_compared():
    whole = packed(SCORES)
    records = compare(mine(whole), whole)
    assert wrong(records) == set()
    assert {record.name for record in records} == {
        "cp1.selected_keys",
        "cp1.attention_output",
        "cp1.grad.query",
        "cp1.grad.key",
        "cp1.grad.param.w",
        "cp1.logged_loss",
    }
    assert {(r.global_rank, r.cp_rank, r.layer) for r in records} == {(1, 1, 1)}
    assert {r.name for r in records if r.gradient} == {
        "cp1.grad.query",
        "cp1.grad.key",
        "cp1.grad.param.w",
    }


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("rows", "attention_output"),
        ("rows", "grad.query"),
        ("keys", "grad.key"),
        ("reduced", "grad.param.w"),
        ("reduced", "logged_loss"),
    ],
)
def test_a_value_that_differs_is_seen(part, name):
    whole = packed(SCORES)
    values = mine(whole)
    getattr(values, part)[1, name].view(-1)[0] += 0.5
    assert wrong(compare(values, whole)) == {f"cp1.{name}"}


def test_a_row_of_the_other_rank_is_not_compared():
    whole = packed(SCORES)
    values = mine(whole)
    whole.rows[1, "attention_output"][0] += 1.0
    assert wrong(compare(values, whole)) == set()


def test_other_keys_of_lower_score_are_seen():
    whole = packed(SCORES)
    values = mine(whole)
    row = int((values.rows[1, SELECTED][:, 0] >= 0).all(-1).nonzero()[-1])
    visible = set(range(8, 14)) - set(values.rows[1, SELECTED][row, 0].tolist())
    values.rows[1, SELECTED][row, 0, 0] = min(visible, key=lambda key: SCORES[key])
    records = compare(values, whole)
    assert wrong(records) == {"cp1.selected_keys"}
    assert records[0].max_abs_diff == 1.0


def test_other_keys_of_equal_score_are_a_note_and_no_fault():
    flat = [1.0] * 16
    whole = packed(flat)
    values = mine(whole, flat)
    picks = values.rows[1, SELECTED]
    row = int((picks[:, 0] >= 0).all(-1).nonzero()[-1])
    picks[row, 0] = picks[row, 0] + 1
    records = compare(values, whole)
    notes = [record for record in records if isinstance(record, NoteEvidence)]
    assert [note.topic for note in notes] == [f"cp1.{TIED}"]
    assert wrong(r for r in records if r not in notes) == set()


def test_a_sum_whose_terms_cancel_is_bounded_by_their_size():
    whole = packed(SCORES)
    values = mine(whole)
    values.reduced[1, "grad.param.w"] += 0.05
    assert wrong(compare(values, whole)) == {"cp1.grad.param.w"}
    values.scales[1, "grad.param.w"] = (torch.full((3,), 8.0), 1)
    assert wrong(compare(values, whole)) == set()
