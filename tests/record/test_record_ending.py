"""The exit code of results: a run that lost a part of itself has not succeeded."""

import pytest

from harness.record.ending import results_code
from harness.record.path import PathEvidence
from harness.record.result import Attempt, ScenarioResult
from harness.record.verdict import ExitCode, Outcome, Verdict

PATH = PathEvidence(
    global_rank=0,
    cp_rank=0,
    microbatch=0,
    layer=0,
    seed=0,
    backend="none",
    plan="packed_thd",
    plan_source="inferred",
    reason="",
    scorer="none",
    fused=False,
)


def _result(name, **attempt):
    fields = {"number": 1, "verdict": Verdict.PASS, "paths": (PATH,)} | attempt
    not_run = fields["verdict"] is Verdict.NOT_RUN
    return ScenarioResult(
        id=name,
        content_hash="0" * 12,
        summary="One.",
        scenario={},
        attempts=(Attempt(**fields),),
        outcome=Outcome.NOT_RUN if not_run else Outcome.EXPECTED,
        expected="pass",
    )


def _not_run(**more):
    return _result("b", verdict=Verdict.NOT_RUN, paths=(), missing_capability="node 1", **more)


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([], ExitCode.NOTHING_RAN),
        ([_result("a")], ExitCode.OK),
        ([_result("a"), _not_run()], ExitCode.OK),
        ([_result("a"), _not_run(cut_short="node 1 was lost")], ExitCode.FAULT),
        ([_not_run(cut_short="node 1 did not join")], ExitCode.FAULT),
        ([_not_run()], ExitCode.NOTHING_RAN),
    ],
)
def test_the_code_of_results(results, code):
    assert results_code(results) is code
