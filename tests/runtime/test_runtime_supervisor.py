"""Real rank processes, planted ends, and what the supervisor records of them."""

import os
import signal
import time

import pytest

from harness.record.path import PathEvidence
from harness.record.phase import Phase
from harness.runtime.processes import send_signal, session_members
from harness.runtime.spawner import SpawnerError

pytestmark = [pytest.mark.ranks]


def _nothing_left(done):
    return session_members({rank.pid for rank in done.ranks}) == ()


def test_a_healthy_attempt(fresh, make_planned):
    runner = fresh()
    done = runner.run(make_planned(ranks=3), 1)
    assert done.clean
    for number, (rank, journal) in enumerate(zip(done.ranks, done.journals, strict=True)):
        assert rank.global_rank == number
        assert rank.exit_code == 0 and rank.signal is None and not rank.ended_by_harness
        assert [timing.phase for timing in rank.phases[:3]] == [
            Phase.START,
            Phase.RENDEZVOUS,
            Phase.BUILD,
        ]
        assert all(timing.end_s is not None for timing in rank.phases)
        assert len(journal.of(PathEvidence)) == 1
        assert journal.pid == rank.pid
    assert len({rank.pid for rank in done.ranks}) == 3
    assert _nothing_left(done)
    folder = runner._places.folder.path
    outputs = sorted(folder.glob("ranks/*/1/rank*.out"))
    assert [path.read_text() for path in outputs] == [
        f"rank {rank} of 3 done\n" for rank in range(3)
    ]
    assert not list(runner._places.scratch.iterdir()), "the rendezvous file is left"


@pytest.mark.parametrize(
    ("kind", "number"), [("sigsegv", signal.SIGSEGV), ("sigkill", signal.SIGKILL)]
)
def test_a_signal_in_one_rank(fresh, make_planned, kind, number):
    runner = fresh(inject=(f"{kind}@1:score",))
    done = runner.run(make_planned(), 1)
    struck, peer = done.ranks[1], done.ranks[0]
    assert struck.signal == number and struck.exit_code is None
    assert not struck.ended_by_harness and struck.deadline is None
    assert struck.last_phase is Phase.SCORE
    assert peer.signal is None or peer.ended_by_harness
    assert done.duration_s < 5
    assert done.journals[1].facts["injecting"] == f"{kind}@1:score"
    assert _nothing_left(done)


def test_the_stacks_of_a_segfault_are_kept(fresh, make_planned):
    runner = fresh(inject=("sigsegv@0:score",))
    done = runner.run(make_planned(), 1)
    text = (runner._places.folder.path / done.ranks[0].stacks).read_text()
    assert "Segmentation fault" in text and "tiny_engine.py" in text


def test_an_exception_while_others_wait_in_a_collective(fresh, make_planned):
    done = fresh(inject=("exception@1:score",)).run(make_planned(), 1)
    struck, peer = done.ranks[1], done.ranks[0]
    assert struck.exit_code == 1
    assert struck.exception.type == "harness.runtime.inject.InjectedFaultError"
    assert struck.exception.origin == "injected"
    assert "tiny_engine.py" in struck.exception.traceback
    assert not struck.exception.in_collective
    # The peer either raised the echo out of its collective or was killed while it waited there.
    if peer.exception is not None:
        assert peer.exception.in_collective
        assert peer.ended_s > struck.ended_s
    else:
        assert peer.ended_by_harness
    assert _nothing_left(done)


def test_an_early_exit_with_status_zero_is_no_success(fresh, make_planned):
    done = fresh(inject=("exit0@1:compare",)).run(make_planned(), 1)
    assert done.ranks[1].exit_code == 0
    assert not done.ranks[1].completed
    assert not done.clean


def test_an_early_exit_does_not_wait_for_peers_that_do_not_notice(fresh, make_planned):
    done = fresh(inject=("exit0@1:score", "sleep@0:score")).run(make_planned(time_s=60.0), 1)
    assert done.ranks[0].ended_by_harness and done.ranks[0].deadline is None
    assert done.duration_s < 10


def test_a_rank_that_sleeps_past_the_limit(fresh, make_planned):
    runner = fresh(inject=("sleep@1:score",))
    done = runner.run(make_planned(time_s=1.0), 1)
    sleeper, peer = done.ranks[1], done.ranks[0]
    assert sleeper.deadline is Phase.SCORE and sleeper.ended_by_harness
    assert sleeper.signal == signal.SIGKILL
    assert sleeper.waiting_in_collective is False
    assert peer.waiting_in_collective is True
    assert "inject.py" in (runner._places.folder.path / sleeper.stacks).read_text()
    assert 0.9 < done.duration_s < 60
    assert _nothing_left(done)


def test_a_stopped_rank_is_told_by_its_state(fresh, make_planned):
    done = fresh(inject=("sigstop@1:score",)).run(make_planned(time_s=1.0), 1)
    assert done.ranks[1].process_state == "T"
    assert done.ranks[1].waiting_in_collective is None
    assert done.ranks[0].process_state is None
    assert _nothing_left(done)


def test_a_budget_covers_the_scenario_phases_together(fresh, make_planned):
    runner = fresh(engine="slow_engine:execute")
    late = runner.run(make_planned("tiny/late", time_s=0.6), 1)
    assert late.ranks[0].deadline is Phase.SCORE, "two phases of 0.4 s exceed 0.6 s"
    assert runner.run(make_planned("tiny/in-time", time_s=5.0), 1).clean


def test_the_build_phase_is_not_on_the_scenario_s_budget(fresh, make_planned):
    runner = fresh(engine="slow_engine:slow_build")
    assert runner.run(make_planned(time_s=0.5), 1).clean


def test_memory_runs_out_as_a_typed_exception(fresh, make_planned):
    done = fresh(inject=("oom@0:score",)).run(make_planned(), 1)
    assert done.ranks[0].exception.out_of_memory
    assert done.ranks[0].exception.origin == "injected"


def test_an_injected_address_fault_carries_its_record(fresh, make_planned):
    done = fresh(inject=("address_fault@0:select",)).run(make_planned(), 1)
    assert done.ranks[0].exception.address_fault.klass == "past_tensor"


def test_a_failing_rendezvous_is_in_its_phase(fresh, make_planned):
    done = fresh(inject=("exception@1:rendezvous",)).run(make_planned(), 1)
    assert done.ranks[1].last_phase is Phase.RENDEZVOUS
    assert done.ranks[1].exception is not None


def test_a_rank_that_leaves_a_process_behind(fresh, make_planned):
    done = fresh(engine="slow_engine:leave_a_process").run(make_planned(), 1)
    assert done.clean
    assert _nothing_left(done)


def test_the_next_attempt_is_unaffected_and_descriptors_stay(fresh, make_planned):
    plain = fresh()
    assert plain.run(make_planned("tiny/first"), 1).clean
    before = sorted(os.listdir("/proc/self/fd"))
    for kind in ("sigsegv@1:score", "exception@0:score", "exit0@1:select", "sigkill@0:gather"):
        runner = fresh(inject=(kind,))
        assert not runner.run(make_planned(), 1).clean
        assert plain.run(make_planned(f"tiny/after-{kind[:4]}"), 1).clean
    assert sorted(os.listdir("/proc/self/fd")) == before


def test_a_stop_request_ends_the_attempt(fresh, make_planned):
    asked_s = time.monotonic() + 1.0
    runner = fresh(stop=lambda: time.monotonic() > asked_s, inject=("sleep@0:score",))
    done = runner.run(make_planned(time_s=60.0), 1)
    assert done.cut_short is not None
    assert done.duration_s < 5
    assert _nothing_left(done)


def test_scorer_level_deals_logical_ranks_out(fresh, make_planned, make_scenario):
    from dataclasses import replace

    item = make_planned("tiny/scorer", ranks=5, level="scorer")
    done = fresh().run(replace(item, num_ranks=2), 1)
    assert done.clean
    dealt = [tuple(e.cp_rank for e in j.of(PathEvidence)) for j in done.journals]
    assert dealt == [(0, 2, 4), (1, 3)]


def test_the_forkserver_only_imports(node):
    assert node.facts.start_method == "forkserver"
    assert node.facts.problem is None
    assert 1 <= node.facts.server_threads <= 2, "something in the preload started threads"


def test_the_first_matmul_of_a_child_does_not_hang(fresh, make_planned):
    assert fresh(engine="slow_engine:matmul").run(make_planned(time_s=20.0), 1).clean


def test_a_lost_forkserver_is_an_error_of_the_harness_and_is_replaced(node, fresh, make_planned):
    server = node._spawner._server_pid

    def stop():
        # Asked several times a second: end the forkserver once, as the kernel might.
        if node._spawner._server_pid == server and list(folder.glob("ranks/*/1/rank1.jsonl")):
            send_signal(server, signal.SIGKILL)
        return False

    runner = fresh(stop=stop, inject=("sleep@1:score@first",))
    folder = runner._places.folder.path
    with pytest.raises(SpawnerError, match=r"the forkserver .* ended, and all rank processes"):
        runner.run(make_planned("tiny/first"), 1)
    assert runner.run(make_planned("tiny/second"), 1).clean
    assert node._spawner._server_pid not in (None, server)
