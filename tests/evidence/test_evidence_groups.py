"""Uses of groups are read from the calls that hooks saw, and judged microbatch by microbatch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.evidence.groups import group_uses
from harness.production.recorder import HookCall
from harness.record.groups import GroupEvidence, GroupMoment, GroupUse
from harness.record.verdict import Verdict
from harness.runtime.judge_groups import group_deviations


class FakeGroup:
    """A group of a given size."""

    def __init__(self, size: int, rank: int) -> None:
        self._size, self._rank = size, rank

    def size(self) -> int:
        """Ranks."""
        return self._size

    def rank(self) -> int:
        """Own rank."""
        return self._rank


TP = FakeGroup(1, 0)


def call(symbol: str, caller: str = "DSAttention.forward", **arguments: object) -> HookCall:
    """Make a call that returned."""
    return HookCall(
        symbol=symbol,
        origin="megatron",
        layer=1,
        arguments=dict(arguments),
        returned=True,
        caller=caller,
    )


def scored(keys: int, own: int) -> list[HookCall]:
    """Make the calls of an indexer and of a scorer of so many keys."""
    indexer = call("indexer")
    indexer.result = (torch.zeros(own, 1, 2, 4), torch.zeros(own, 1, 4), torch.zeros(own, 1, 2))
    scorer = call(
        "naive_topk",
        q=torch.zeros(own, 1, 2, 4),
        k=torch.zeros(keys, 1, 4),
        weights=torch.zeros(own, 1, 2),
    )
    scorer.result = (None, torch.zeros(1, own, 3, dtype=torch.int64))
    return [indexer, scorer]


def test_every_use_is_read_from_its_own_call() -> None:
    group = FakeGroup(2, 1)
    calls = [
        call("layout_tables", cp_size=2, cp_rank=1),
        # The builder asks for the rows of every rank in turn, which is no use of a group.
        call("local_positions", caller="build_packed_tables", cp_size=2, cp_rank=0),
        call("gather", group=group),
        call("bounds", cp_size=2, cp_rank=1),
        call("rotary", cp_group=group),
        call("rotary", cp_group=group),
        *scored(keys=32, own=16),
    ]
    found = list(group_uses(calls, TP))
    assert [(use.what, use.size, use.rank) for use in found] == [
        ("partition", 2, 1),
        ("gather", 2, 1),
        ("bounds", 2, 1),
        ("rotary", 2, 1),
        ("scoring", 2, None),
    ]


def test_a_gather_over_tensor_parallel_ranks_is_none_of_it() -> None:
    tp = FakeGroup(2, 0)
    assert list(group_uses([call("gather", group=tp)], tp)) == []


def test_uses_of_a_replay_say_so() -> None:
    (use,) = group_uses([call("bounds", cp_size=1, cp_rank=0)], TP, replay=True)
    assert use.replay


RIGHT = GroupEvidence(
    global_rank=1,
    cp_rank=1,
    microbatch=2,
    seed=0,
    configured=(0, 1, 2, 3),
    effective=(0, 1),
    contract="real",
    set_by="harness",
    uses=(
        GroupUse(what="rotary", size=2, rank=1, layer=1),
        GroupUse(what="scoring", size=2, rank=None, layer=1),
    ),
    moments=(
        GroupMoment(
            when="forward", holder="pg_collection.cp", ranks=(0, 1, 2, 3), due=(0, 1, 2, 3)
        ),
    ),
    stored={"2": 2, "4": 4},
    comm_type="allgather",
    rows=(12, 12),
    padded_total=24,
)


def test_a_right_microbatch_deviates_in_nothing() -> None:
    assert group_deviations([RIGHT]) == ()


ROTARY = GroupUse(what="rotary", size=4, rank=1, layer=1)
RANK = GroupUse(what="gather", size=2, rank=0, layer=1)
SCORING = GroupUse(what="scoring", size=4, rank=None, layer=1)
REPLAY = GroupUse(what="bounds", size=4, rank=1, layer=1, replay=True)


@pytest.mark.parametrize(
    ("change", "verdict", "kind", "said"),
    [
        ({"uses": (ROTARY,)}, Verdict.WRONG_PATH, "group", "rotary embedding went by a group of 4"),
        ({"uses": (RANK,)}, Verdict.WRONG_PATH, "group", "of 2 as rank 0, it runs on 2 as rank 1"),
        ({"uses": (SCORING,)}, Verdict.WRONG_PATH, "group", "scorer's keys went by a group of 4"),
        ({"uses": (REPLAY,)}, Verdict.WRONG_PATH, "group", "computed again in backward"),
        ({"stored": {"2": 4}}, Verdict.WRONG_PATH, "group", "stored for 2 ranks has 4"),
        ({"comm_type": "p2p"}, Verdict.WRONG_PATH, "comm_type", "cp_comm_type p2p"),
        ({"rows": (12, 8)}, Verdict.WRONG_VALUE, "rows", "add up to 20, the padded pack has 24"),
    ],
)
def test_each_fault_is_named_with_microbatch_and_rank(
    change: dict[str, object], verdict: Verdict, kind: str, said: str
) -> None:
    (found,) = group_deviations([replace(RIGHT, **change)])
    assert (found.verdict, found.kind, found.global_rank) == (verdict, kind, 1)
    assert found.text.startswith("microbatch 2 on rank 1: ")
    assert said in found.text


@pytest.mark.parametrize("when", ["forward", "backward", "interrupted"])
def test_a_group_that_was_not_put_back_is_state_left(when: str) -> None:
    left = GroupMoment(when=when, holder="indexer.pg_collection.cp", ranks=(0, 1), due=(0, 1, 2, 3))
    (found,) = group_deviations([replace(RIGHT, moments=(left,))])
    assert (found.verdict, found.kind) == (Verdict.STATE_LEAK, "group_left")
    assert "indexer.pg_collection.cp holds ranks 0, 1, the caller's was ranks 0, 1, 2, 3" in (
        found.text
    )


def test_one_rank_may_hold_any_communication_type() -> None:
    alone = replace(
        RIGHT,
        effective=(1,),
        uses=(GroupUse(what="rotary", size=1, rank=0, layer=1),),
        comm_type="p2p",
        rows=(24,),
    )
    assert group_deviations([alone]) == ()
