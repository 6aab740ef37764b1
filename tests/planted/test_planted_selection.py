"""Planted faults through the whole path: each turns its own verdict red, its healthy twin passes.

One torchrun of 4 gloo ranks runs a scenario per fault; ``--inject`` names the scenario it is for.
"""

from __future__ import annotations

import pytest
from planted_runs import Run, run, write_scenario

from harness.record.result import Phase
from harness.record.verdict import Outcome, Verdict

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("ranks"), pytest.mark.timeout(300)]

FAULTS = {
    "wrong-index": ("wrong_index@1:select", Verdict.WRONG_SELECTION),
    "past-limit": ("past_limit@2:select", Verdict.OUT_OF_BOUNDS),
    "neighbour": ("neighbour_sequence@3:select", Verdict.OUT_OF_BOUNDS),
    "duplicate": ("duplicate_index@0:select", Verdict.WRONG_SELECTION),
    "unfused": ("unfused_path@1:score", Verdict.WRONG_PATH),
    "segfault": ("sigsegv@2:score", Verdict.CRASH),
    "exception": ("exception@1:gather", Verdict.CRASH),
    "sleeper": ("sleep@3:gather", Verdict.HANG),
}
"""Scenario name to (injection, verdict)."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("scenarios")
    paths, arguments = [], []
    for name, (injection, _verdict) in FAULTS.items():
        time_s = 6.0 if name == "sleeper" else 20.0
        paths.append(write_scenario(folder, f"planted/{name}", time_s=time_s))
        paths.append(write_scenario(folder, f"healthy/after-{name}"))
        arguments += ["--inject", f"{injection}@planted/{name}"]
    return run(4, paths, tmp_path_factory.mktemp("runs"), *arguments)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_has_its_own_verdict_on_the_right_rank(planted, name):
    injection, verdict = FAULTS[name]
    result = planted.results[f"planted/{name}"]
    rank = int(injection.partition("@")[2].partition(":")[0])
    assert result.verdict is verdict, result.explanation
    assert result.outcome is Outcome.UNEXPECTED
    attempt = result.last
    if attempt.fault is not None:
        assert attempt.fault.global_rank == rank
        assert attempt.fault.phase is Phase(injection.partition(":")[2])
    elif verdict is Verdict.WRONG_PATH:
        assert [p.global_rank for p in attempt.paths if not p.fused] == [rank]
    else:
        wrong = {s.global_rank for s in attempt.selections if s.total.num_wrong}
        assert wrong == {rank}


@pytest.mark.parametrize("name", FAULTS)
def test_the_next_scenario_is_unaffected(planted, name):
    result = planted.results[f"healthy/after-{name}"]
    assert result.verdict is Verdict.PASS, result.explanation
    overlaps = {s.total.strict_overlap for s in result.last.selections if s.stage == "final"}
    assert overlaps == {1.0}


def test_each_selection_fault_shows_under_its_own_count(planted):
    def counts(name: str) -> dict[str, int]:
        total = {}
        for selection in planted.results[f"planted/{name}"].last.selections:
            if selection.stage == "final":
                for field in ("below", "future", "foreign", "duplicate"):
                    total[field] = total.get(field, 0) + getattr(selection.total, field)
        return {field: count for field, count in total.items() if count}

    assert counts("wrong-index") == {"below": 1}
    assert counts("past-limit") == {"future": 1}
    assert counts("neighbour") == {"foreign": 1}
    assert counts("duplicate") == {"duplicate": 1}


def test_the_exception_of_the_first_rank_is_in_the_record_with_its_traceback(planted):
    attempt = planted.results["planted/exception"].last
    (raised,) = [r.exception for r in attempt.ranks if r.global_rank == 1]
    assert raised is not None
    assert raised.origin == "injected"
    assert "gather_from_sequence_parallel_region" in raised.traceback
    assert set(attempt.fault.victims) == {0, 2, 3}


def test_the_sleepers_peers_and_stacks_are_in_the_record(planted):
    attempt = planted.results["planted/sleeper"].last
    assert attempt.fault.global_rank == 3
    stacks = [r.stacks for r in attempt.ranks if r.stacks]
    assert stacks
    text = "".join((planted.folder / path).read_text() for path in stacks)
    assert "inject.py" in text


def test_the_run_ends_with_the_worst_code_and_says_so(planted):
    assert planted.record.exit_code == 4
    assert planted.status == 1
    assert "exit code 4" in planted.output
