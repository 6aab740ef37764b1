"""The table of groups shows microbatches with groups of their own, and what was left behind."""

from __future__ import annotations

from types import SimpleNamespace

from harness.record.groups import GroupEvidence, GroupMoment, GroupUse
from reports.groups import group_table


def record(**changes):
    given = {
        "global_rank": 0,
        "cp_rank": 0,
        "microbatch": 1,
        "seed": 0,
        "configured": (0, 1, 2, 3),
        "effective": (0, 1),
        "contract": "real",
        "set_by": "layer",
        "uses": (
            GroupUse(what="rotary", size=2, rank=0, layer=1),
            GroupUse(what="gather", size=2, rank=0, layer=1),
            GroupUse(what="gather", size=4, rank=0, layer=1, replay=True),
        ),
        "moments": (
            GroupMoment(when="forward", holder="pg_collection.cp", ranks=(0, 1), due=(0, 1, 2, 3)),
        ),
    }
    return GroupEvidence(**(given | changes))


def summary(*records):
    last = SimpleNamespace(groups=records)
    return SimpleNamespace(scenarios=[SimpleNamespace(result=SimpleNamespace(id="a/b", last=last))])


def test_a_microbatch_on_a_part_is_one_row_over_its_ranks():
    found = group_table(summary(record(), record(global_rank=1, cp_rank=1)))
    (row,) = found.rows
    assert row == (
        "a/b",
        "1",
        "0, 1",
        "0..3",
        "real",
        "layer",
        "rotary 2, gather 2 (replay 4)",
        "pg_collection.cp holds 0, 1 behind forward",
        "-",
        "0, 1",
    )


def test_the_usual_case_is_left_out_and_a_leak_in_it_is_not():
    back = GroupMoment(when="forward", holder="cp", ranks=(0, 1), due=(0, 1))
    usual = record(contract="configured", set_by="nobody", moments=(back,))
    assert group_table(summary(usual)).rows == ()
    assert len(group_table(summary(record(contract="configured"))).rows) == 1
