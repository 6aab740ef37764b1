"""Planted ends of processes, with real ranks under torchrun and an engine that needs no Megatron.

Each kind has a verdict of its own on the rank it struck; a healthy scenario follows each.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from planted_runs import Run, run, write_scenario

from harness.record.result import Phase
from harness.record.verdict import ExitCode, Outcome, Verdict

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("ranks"), pytest.mark.timeout(240)]

ENGINES = Path(__file__).resolve().parents[1] / "runtime"

SCENARIO = """\
id: {id}
summary: Planted in a test.
model: small
level: attention
kernels: {{dsa_kernel_backend: none}}
parallel: {{context_parallel_size: {cp}}}
microbatches: [{{sequences: [64, 32]}}]
limits: {{time_s: {time_s}}}
"""

KINDS = {
    "segfault": ("sigsegv@1:score", Verdict.CRASH, 1),
    "killed": ("sigkill@0:select", Verdict.CRASH, 0),
    "raised": ("exception@1:gather", Verdict.CRASH, 1),
    "left": ("exit0@1:compare", Verdict.CRASH, 1),
    "memory": ("oom@1:score", Verdict.OUT_OF_MEMORY, 1),
    "address": ("address_fault@0:score", Verdict.MEMORY_FAULT, 0),
    "asleep": ("sleep@1:select", Verdict.HANG, 1),
    "stopped": ("sigstop@1:select", Verdict.HANG, 1),
    # Here the struck rank is healthy for a while and its peers fall over what it sent.
    "shape": ("mismatched_shape@1:select", Verdict.CRASH, None),
    "extra": ("extra_collective@1:select", Verdict.HANG, None),
    "meeting": ("sigkill@1:rendezvous", Verdict.INFRASTRUCTURE, 1),
}
"""Name to (injection, verdict, rank that has to be blamed or None)."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("scenarios")
    paths, arguments = [], ["--engine", "tiny_engine:execute"]
    for name, (injection, verdict, _rank) in KINDS.items():
        time_s = 1.5 if verdict is Verdict.HANG else 20.0
        for prefix, limit_s in (("planted", time_s), ("healthy", 20.0)):
            names = {"cp": 2, "time_s": limit_s, "text": SCENARIO}
            paths.append(write_scenario(folder, f"{prefix}/{name}", **names))
        arguments += ["--inject", f"{injection}@planted/{name}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ENGINES}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"))
        return run(2, paths, tmp_path_factory.mktemp("runs"), *arguments)


@pytest.mark.parametrize("name", KINDS)
def test_each_end_has_its_verdict_rank_and_phase(planted, name):
    injection, verdict, rank = KINDS[name]
    result = planted.results[f"planted/{name}"]
    assert result.verdict is verdict, result.explanation
    assert result.outcome is Outcome.UNEXPECTED
    assert result.last.proof.injected == (f"{injection}@planted/{name}",)
    fault = result.last.fault
    if rank is not None:
        assert fault.global_rank == rank
        assert fault.phase is Phase(injection.rpartition(":")[2])
        others = {one.global_rank for one in result.last.ranks} - {rank}
        assert set(fault.victims) <= others


@pytest.mark.parametrize("name", KINDS)
def test_the_scenario_after_it_passes(planted, name):
    result = planted.results[f"healthy/{name}"]
    assert result.verdict is Verdict.PASS
    assert result.last.proof.injected == ()
    assert all(rank.completed for rank in result.last.ranks)


def test_the_traceback_of_the_struck_rank_is_in_the_record(planted):
    raised = {r.global_rank: r for r in planted.results["planted/raised"].last.ranks}
    assert "InjectedFaultError" in raised[1].exception.traceback
    assert raised[1].exception.origin == "injected"


def test_stopped_and_sleeping_ranks_are_told_apart(planted):
    stopped = planted.results["planted/stopped"].last.ranks
    asleep = planted.results["planted/asleep"].last.ranks
    assert stopped[1].process_state == "T" and stopped[1].waiting_in_collective is None
    assert asleep[1].process_state is None and asleep[1].waiting_in_collective is False
    assert stopped[0].waiting_in_collective and asleep[0].waiting_in_collective
    assert (planted.folder / asleep[1].stacks).exists()


def test_the_run_says_4_and_torchrun_says_1(planted):
    assert planted.record.exit_code == ExitCode.FAULT
    assert planted.status == 1
    assert "exit code 4" in planted.output
