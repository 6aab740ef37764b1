"""Who failed first, of what: typed facts of several ranks in, one fault report out."""

from __future__ import annotations

import pytest

from harness.record.evidence import AddressFaultEvidence, ExceptionEvidence
from harness.record.phase import Phase
from harness.record.result import PhaseTiming, RankOutcome
from harness.record.verdict import Verdict
from harness.runtime.first_fault import first_fault


def ok(rank: int, **more) -> RankOutcome:
    return RankOutcome(
        **{
            "global_rank": rank,
            "exit_code": 0,
            "completed": True,
            "last_phase": Phase.RECORD,
            "ended_s": 9.0,
        }
        | more
    )


def raised(rank: int, *, ended_s: float = 1.0, phase: Phase = Phase.SCORE, **more) -> RankOutcome:
    exception = ExceptionEvidence(
        **{"type": "RuntimeError", "text": "boom", "traceback": "", "origin": "build"} | more
    )
    return ok(
        rank,
        exit_code=1,
        completed=False,
        exception=exception,
        last_phase=phase,
        ended_s=ended_s,
    )


def killed(rank: int, **more) -> RankOutcome:
    return ok(rank, exit_code=None, completed=False, signal=9, ended_by_harness=True, **more)


FAULT = AddressFaultEvidence(
    kernel="indexer_top_k",
    operand="scores",
    row=1,
    index=2,
    element_offset=3,
    allowed=(0, 3),
    klass="past_tensor",
)


BARE_ASSERT = """Traceback (most recent call last):
  File "/x/harness/engine.py", line 3, in run
    attend(q)
  File "/x/megatron/absorbed_mla.py", line 829, in forward
    assert q_absorbed.is_contiguous()
           ^^^^^^^^^^^^^^^^^^^^^^^^^^
AssertionError
"""


@pytest.mark.parametrize(
    ("traceback", "said"),
    [
        (
            BARE_ASSERT,
            "AssertionError: raised without words in forward (absorbed_mla.py:829): "
            "assert q_absorbed.is_contiguous()",
        ),
        ("", "AssertionError: raised without words"),
    ],
)
def test_an_exception_without_words_is_told_by_its_place(traceback, said):
    fault = first_fault([ok(0), raised(1, type="AssertionError", text="", traceback=traceback)])
    assert fault.cause.endswith(said)


def test_no_fault_among_completed_ranks():
    assert first_fault([ok(0), ok(1)]) is None


@pytest.mark.parametrize(
    ("rank", "verdict"),
    [
        (raised(1), Verdict.CRASH),
        (raised(1, declined=True), Verdict.REFUSED),
        (raised(1, declined=True, origin="injected"), Verdict.CRASH),
        (raised(1, origin="harness"), Verdict.HARNESS_ERROR),
        (raised(1, out_of_memory=True), Verdict.OUT_OF_MEMORY),
        (raised(1, compile_failure=True, declined=True), Verdict.COMPILE_FAILED),
        (raised(1, kernel_hang=True, declined=True), Verdict.HANG),
        (raised(1, address_fault=FAULT), Verdict.MEMORY_FAULT),
        (raised(1, cuda_error=700), Verdict.MEMORY_FAULT),
        (raised(1, cuda_error=2), Verdict.CRASH),
        (raised(1, phase=Phase.RENDEZVOUS, in_collective=True), Verdict.INFRASTRUCTURE),
        (raised(1, phase=Phase.RENDEZVOUS, origin="harness"), Verdict.INFRASTRUCTURE),
        (ok(1, exit_code=None, completed=False, signal=11), Verdict.CRASH),
        (ok(1, completed=False), Verdict.CRASH),
        (ok(1, exit_code=3, completed=False), Verdict.CRASH),
        (killed(1, deadline=Phase.SCORE, process_state="S"), Verdict.HANG),
        (killed(1, process_state="T"), Verdict.HANG),
    ],
)
def test_verdict_of_a_cause(rank, verdict):
    report = first_fault([ok(0), rank])
    assert report is not None
    assert (report.verdict, report.global_rank) == (verdict, 1)


def test_earliest_cause_wins_on_one_host_and_the_echo_is_a_victim():
    echo = raised(0, ended_s=1.0, in_collective=True)
    cause = ok(2, exit_code=None, completed=False, signal=11, ended_s=1.2)
    report = first_fault([echo, ok(1), cause, killed(3, ended_s=1.1)])
    assert report is not None
    assert report.global_rank == 2
    assert report.victims == (0, 3)
    assert "SIGSEGV" in report.cause


def test_across_hosts_the_class_of_cause_decides():
    crash = raised(0, ended_s=1.0)
    fault = raised(1, ended_s=500.0, address_fault=FAULT)
    same = first_fault([crash, fault])
    assert same is not None
    assert same.global_rank == 0
    hosts = [raised(0, ended_s=1.0), raised(1, ended_s=500.0, address_fault=FAULT)]
    apart = [
        RankOutcome(**{f: getattr(r, f) for f in r.__slots__} | {"host": f"n{i}"})
        for i, r in enumerate(hosts)
    ]
    other = first_fault(apart)
    assert other is not None
    assert other.global_rank == 1


def test_a_stopped_rank_is_the_cause_of_the_peers_deadline():
    peers = [killed(r, deadline=Phase.GATHER, process_state="S") for r in (0, 2)]
    report = first_fault([*peers, killed(1, process_state="T")])
    assert report is not None
    assert (report.verdict, report.global_rank) == (Verdict.HANG, 1)


def test_of_two_deadlines_the_rank_furthest_behind_is_named():
    def phases(*names: Phase) -> tuple[PhaseTiming, ...]:
        return tuple(PhaseTiming(phase=name, begin_s=0.0) for name in names)

    waiting = killed(0, deadline=Phase.GATHER, phases=phases(Phase.LAYOUT, Phase.GATHER))
    asleep = killed(1, deadline=Phase.LAYOUT, phases=phases(Phase.LAYOUT))
    report = first_fault([waiting, asleep])
    assert report is not None
    assert (report.global_rank, report.phase) == (1, Phase.LAYOUT)


def test_a_rank_inside_a_collective_waits_for_the_one_that_is_not():
    waiting = [
        killed(r, deadline=Phase.GATHER, waiting_in_collective=True, phases=()) for r in (0, 1, 2)
    ]
    timings = tuple(PhaseTiming(phase=Phase.GATHER, begin_s=0.0) for _ in range(5))
    asleep = killed(3, deadline=Phase.GATHER, waiting_in_collective=False, phases=timings)
    report = first_fault([*waiting, asleep])
    assert report is not None
    assert (report.global_rank, report.victims) == (3, (0, 1, 2))
