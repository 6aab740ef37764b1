"""Which rank left the common order of collectives: planted disagreements and healthy twins."""

from dataclasses import replace
from itertools import count

import pytest

from harness.record.codec import dumps, loads
from harness.record.collective import CollectiveCall, CollectiveFinding, CollectiveKind
from harness.record.phase import Phase
from harness.record.result import RankOutcome
from harness.record.verdict import Verdict
from harness.runtime.collective_order import find_disagreement
from harness.runtime.first_fault import first_fault

_clock = count()


def call(sequence=0, operation="all_reduce", shape=(8,), *, end="returned", size=3, **more):
    fields = {
        "group": "1",
        "ranks": tuple(range(size)),
        "inputs": (shape,),
        "dtype": "float32",
        "at": ("megatron/core/x.py:1",),
        "time_s": float(next(_clock)),
    }
    return CollectiveCall(sequence=sequence, operation=operation, end=end, **fields | more)


def send(peer, sequence=0, operation="send", **more):
    return call(sequence, operation, peer=peer, pairwise=True, **more)


def recv(peer, sequence=0, operation="recv", **more):
    return send(peer, sequence, operation, **more)


def test_equal_calls_are_no_finding():
    calls = {rank: [call(0), call(1, "barrier", ())] for rank in range(3)}
    assert find_disagreement(calls) is None
    assert find_disagreement({}) is None
    assert find_disagreement({0: [], 1: []}) is None


def test_a_rank_that_made_no_call_is_missing():
    calls = {0: [call(0), call(1, end=None)], 1: [call(0)], 2: [call(0), call(1, end=None)]}
    found = find_disagreement(calls)
    assert found.kind is CollectiveKind.MISSING
    assert (found.ranks, found.waiting, found.sequence) == ((1,), (0, 2), 1)
    assert found.text == (
        "ranks 0, 2 in all_reduce #1 of group 1 (ranks 0, 1, 2) at megatron/core/x.py:1, "
        "which rank 1 never called"
    )
    healthy = {rank: made[:1] for rank, made in calls.items()}
    assert find_disagreement(healthy) is None


def test_who_waits_for_a_waiting_rank_is_not_blamed():
    # Rank 2 is away; 1 waits for it in their group; 0 waits for 1 in another.
    pair = {"group": "2", "ranks": (1, 2)}
    calls = {0: [call(0, end=None)], 1: [call(0, end=None, **pair)], 2: []}
    calls[0] = [replace(calls[0][0], group="3", ranks=(0, 1))]
    found = find_disagreement(calls)
    assert (found.kind, found.ranks, found.waiting) == (CollectiveKind.MISSING, (2,), (1,))


def test_an_asynchronous_call_that_returned_may_still_wait():
    calls = {0: [call(0, blocking=False)], 1: [], 2: [call(0, blocking=False)]}
    assert find_disagreement(calls).ranks == (1,)
    calls[1] = [call(0, blocking=False)]
    assert find_disagreement(calls) is None


def test_a_root_that_went_on_is_no_wait():
    calls = {0: [call(0, "broadcast", peer=0)], 1: [], 2: []}
    assert find_disagreement(calls) is None, "complete on the root, and nobody else waits"


def test_an_extra_call_of_one_among_many():
    calls = {rank: [call(0, end=None)] for rank in (0, 2)}
    calls[1] = [call(0, group="0", end=None)]
    found = find_disagreement(calls)
    assert (found.kind, found.ranks, found.group) == (CollectiveKind.EXTRA, (1,), "0")
    assert found.text.startswith("rank 1 alone in all_reduce #0 of group 0 (ranks 0, 1, 2); rank 0")


@pytest.mark.parametrize("planted", [0, 1, None])
def test_between_two_ranks_only_the_planted_call_tells_who_is_wrong(planted):
    calls = {0: [call(0, end=None, size=2)], 1: [call(0, group="0", end=None, size=2)]}
    if planted is not None:
        calls[planted] = [replace(calls[planted][0], at=("harness/runtime/inject.py:9",))]
    found = find_disagreement(calls)
    if planted is None:
        assert (found.kind, found.ranks) == (CollectiveKind.CIRCLE, ())
        assert "rank 0 in" in found.text and "rank 1 in" in found.text
    else:
        assert (found.kind, found.ranks) == (CollectiveKind.EXTRA, (planted,))


@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("operation", {"operation": "barrier"}),
        ("shape", {"shape": (9,)}),
        ("dtype", {"dtype": "bfloat16"}),
        ("reduction", {"reduction": "AVG"}),
        ("root", {"peer": 1}),
        ("group ranks", {"ranks": (0, 1)}),
    ],
)
def test_a_call_that_differs_names_the_rank_and_what_differs(field, other):
    calls = {rank: [call(0), call(1)] for rank in range(3)}
    calls[2][1] = call(1, **other)
    found = find_disagreement(calls)
    assert (found.kind, found.field, found.ranks) == (CollectiveKind.MISMATCH, field, (2,))
    assert found.sequence == 1
    assert f"differs in {field}" in found.text and "rank 2 against the others" in found.text


def test_the_first_of_two_differences_counts():
    calls = {rank: [call(0), call(1), call(2)] for rank in range(3)}
    calls[1][1] = replace(calls[1][1], dtype="int64")
    calls[0][2] = replace(calls[0][2], dtype="int64")
    found = find_disagreement(calls)
    assert (found.sequence, found.ranks) == (1, (1,))


def test_two_equal_sides_name_nobody():
    calls = {0: [call(0, size=2)], 1: [call(0, shape=(9,), size=2)]}
    assert find_disagreement(calls).ranks == ()


@pytest.mark.parametrize(
    "made",
    [
        # Megatron gathers parts of unequal size: outputs are equal, the inputs are not.
        [
            call(0, "all_gather", (rank + 1, 4), outputs=((1, 4), (2, 4), (3, 4)))
            for rank in range(3)
        ],
        [call(0, "all_to_all_single", (rank,), outputs=((3 - rank,),)) for rank in range(3)],
        [call(0, shape=shape) for shape in ((8,), (2, 4), (8, 1))],
        [call(0, reduction=text) for text in ("", "SUM", "SUM")],
        [call(0, at=(f"megatron/core/x.py:{rank}",)) for rank in range(3)],
    ],
)
def test_lawful_differences_are_no_finding(made):
    assert find_disagreement({rank: [one] for rank, one in enumerate(made)}) is None


def test_gathers_of_unequal_inputs_into_equal_parts_differ():
    calls = {
        rank: [call(0, "all_gather", (4 + (rank == 1),), outputs=((4,), (4,), (4,)))]
        for rank in range(3)
    }
    assert find_disagreement(calls).ranks == (1,)


def test_a_receive_waits_for_its_sender():
    waiting = {0: [recv(1, end=None)], 1: []}
    found = find_disagreement(waiting)
    assert (found.kind, found.ranks, found.waiting) == (CollectiveKind.MISSING, (1,), (0,))
    assert "recv #0 with rank 1" in found.text
    assert find_disagreement({0: [recv(1)], 1: [send(0)]}) is None
    crossed = {0: [recv(1, operation="irecv", blocking=False), send(1)], 1: [send(0), recv(0)]}
    assert find_disagreement(crossed) is None
    assert find_disagreement({0: [recv(None, end=None)], 1: []}) is None, "from any rank"


def test_a_send_of_another_size_than_its_receive():
    found = find_disagreement({0: [recv(1, shape=(8,))], 1: [send(0, shape=(9,))]})
    assert (found.kind, found.field) == (CollectiveKind.MISMATCH, "shape")


def outcome(rank, **more):
    fields = {"exit_code": None, "signal": 9, "ended_by_harness": True, "last_phase": Phase.SELECT}
    return RankOutcome(global_rank=rank, **fields | more)


MISSING_1 = find_disagreement({0: [call(0, end=None)], 1: [], 2: [call(0, end=None)]})


def test_the_named_rank_takes_the_blame_of_a_deadline_from_those_who_waited():
    # Without stacks nothing else tells the three apart.
    ranks = [outcome(rank, deadline=Phase.SELECT) for rank in range(3)]
    assert first_fault(ranks).global_rank == 0
    fault = first_fault(ranks, MISSING_1)
    assert (fault.verdict, fault.global_rank, fault.victims) == (Verdict.HANG, 1, (0, 2))
    assert fault.collective == MISSING_1
    assert fault.cause.startswith("rank 1 in phase select: ranks 0, 2 in all_reduce #0")
    assert fault.cause.endswith(
        "rank 0 in phase select: did not finish within the limit of phase select "
        "(raise limits.time_s of the scenario if it is only slow)"
    )


def test_a_cause_of_its_own_is_not_talked_away():
    died = outcome(2, signal=11, ended_by_harness=False)
    fault = first_fault([outcome(0), outcome(1), died], MISSING_1)
    assert (fault.verdict, fault.global_rank) == (Verdict.CRASH, 2)


def test_an_end_inside_the_differing_call_is_a_consequence():
    calls = {rank: [call(0, end=None)] for rank in range(3)}
    calls[1] = [call(0, shape=(9,), end=None)]
    finding = find_disagreement(calls)
    aborted = outcome(0, signal=6, ended_by_harness=False, ended_s=1.0)
    fault = first_fault([aborted, outcome(1), outcome(2)], finding)
    assert (fault.verdict, fault.global_rank) == (Verdict.CRASH, 1)
    assert "ended by signal SIGABRT" in fault.cause


def test_findings_survive_json():
    assert loads(CollectiveFinding, dumps(MISSING_1)) == MISSING_1
